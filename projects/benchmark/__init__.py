"""Compare the speed and memory of mmairl with those of other libraries."""
