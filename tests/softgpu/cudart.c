/* The CUDA runtime that torch links to, without a GPU. Device memory is the host's, copies happen at once, kernels do nothing. Functions of the
 * runtime that are not here are made by build.py and return 0. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK cudaSuccess
#define MEMORY (80ull << 30)
enum { PAGEABLE, PINNED, DEVICE };

static __thread int current_device;
static __thread cudaError_t last_error;

static int devices(void) {
  const char *count = getenv("SOFTGPU_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible && !*visible ? 0 : count ? atoi(count) : 1;
}

/* Memory: a sorted list of blocks says what kind of memory an address is. */
typedef struct {
  char *start;
  size_t size;
  int kind, device;
} Block;
static Block *blocks;
static int used, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int place_of(const void *address) {
  int low = 0, high = used;
  while (low < high) {
    int middle = (low + high) / 2;
    if (blocks[middle].start <= (char *)address) low = middle + 1;
    else high = middle;
  }
  return low && (char *)address < blocks[low - 1].start + blocks[low - 1].size ? low - 1 : -1;
}

static void keep(void *start, size_t size, int kind) {
  pthread_mutex_lock(&lock);
  if (used == room) blocks = realloc(blocks, (room = room ? 2 * room : 1024) * sizeof *blocks);
  int place = used++;
  for (; place && blocks[place - 1].start > (char *)start; place--) blocks[place] = blocks[place - 1];
  blocks[place] = (Block){start, size, kind, current_device};
  pthread_mutex_unlock(&lock);
}

static cudaError_t drop(void *start, int release) {
  pthread_mutex_lock(&lock);
  int place = place_of(start);
  if (place >= 0) memmove(blocks + place, blocks + place + 1, (--used - place) * sizeof *blocks);
  pthread_mutex_unlock(&lock);
  if (place >= 0 && release) free(start);
  return OK;
}

static cudaError_t take(void **found, size_t size, int kind) {
  if (posix_memalign(found, 4096, size ? size : 1)) return last_error = cudaErrorMemoryAllocation;
  keep(*found, size ? size : 1, kind);
  return OK;
}

int softgpu_kind(const void *address) {
  pthread_mutex_lock(&lock);
  int place = place_of(address), kind = place < 0 ? PAGEABLE : blocks[place].kind;
  pthread_mutex_unlock(&lock);
  return kind;
}

cudaError_t cudaMalloc(void **p, size_t n) { return take(p, n, DEVICE); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return take(p, n, PINNED); }
cudaError_t cudaFree(void *p) { return drop(p, 1); }
cudaError_t cudaFreeHost(void *p) { return drop(p, 1); }
cudaError_t cudaHostUnregister(void *p) { return drop(p, 0); }
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
  keep(p, n, PINNED);
  return OK;
}
static long copied[3][3];
long softgpu_copies(int from, int to) { return copied[from][to]; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  copied[softgpu_kind(from)][softgpu_kind(to)]++;
  memmove(to, from, n);
  return OK;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, n, kind, 0);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t step, const void *from, size_t other, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s) {
  for (size_t row = 0; row < height; row++) memmove((char *)to + row * step, (char *)from + row * other, width);
  return OK;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
  memset(p, value, n);
  return OK;
}
cudaError_t cudaMemset(void *p, int value, size_t n) { return cudaMemsetAsync(p, value, n, 0); }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
  *unused = *total = MEMORY;
  return OK;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *p) {
  memset(found, 0, sizeof *found);
  pthread_mutex_lock(&lock);
  int place = place_of(p);
  if (place >= 0) {
    found->type = blocks[place].kind == DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    found->device = blocks[place].device;
    found->devicePointer = (void *)p;
    found->hostPointer = blocks[place].kind == PINNED ? (void *)p : NULL;
  }
  pthread_mutex_unlock(&lock);
  return OK;
}

/* Devices. */
cudaError_t cudaGetDeviceCount(int *count) {
  *count = devices();
  return *count ? OK : (last_error = cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return OK;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return last_error = cudaErrorInvalidDevice;
  current_device = device;
  return OK;
}
static int attribute(int which) {
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 232448;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    default: return 1;
  }
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
  *value = attribute(which);
  return OK;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "software GPU");
  p->major = 9;
  p->totalGlobalMem = MEMORY;
  p->warpSize = 32;
  p->multiProcessorCount = 132;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 232448;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = 1;
  p->uuid.bytes[0] = device + 1;
  return OK;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) {
  *can = 1;
  return OK;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return OK;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return OK;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = OK;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(cudaError_t error) { return error == OK ? "cudaSuccess" : "cudaError"; }
const char *cudaGetErrorString(cudaError_t error) { return error == OK ? "no error" : "error of the software GPU"; }

/* Streams and events: all work is done when it is given. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  *s = (cudaStream_t)calloc(1, 16);
  return OK;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
  *priority = 0;
  return OK;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return OK;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *n) {
  return cudaStreamIsCapturing(s, status);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
  f(data);
  return OK;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  *e = (cudaEvent_t)calloc(1, 16);
  return OK;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  free(e);
  return OK;
}
/* Kernels. */
static void *module;
void **__cudaRegisterFatBinary(void *binary) { return &module; }
char __cudaInitModule(void **handle) { return 1; }
static __thread struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} call;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = call.grid, *block = call.block, *shared = call.shared, *(cudaStream_t *)stream = call.stream;
  return OK;
}
cudaError_t __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return OK;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = 90;
  found->maxDynamicSharedSizeBytes = 49152;
  return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) {
  *n = 2;
  return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) {
  *n = 2;
  return OK;
}
cudaError_t cudaGetSymbolAddress(void **found, const void *symbol) {
  static char memory[1 << 16];
  *found = memory;
  return OK;
}

/* The driver, as far as torch asks for it. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
  *value = attribute(which);
  return 0;
}
int cuDeviceGetCount(int *count) {
  *count = devices();
  return 0;
}
static int success() { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  *found = success;
  if (!strncmp(name, "cuDevicePrimaryCtxGetState", 26)) *found = cuDevicePrimaryCtxGetState;
  if (!strcmp(name, "cuDeviceGetAttribute")) *found = cuDeviceGetAttribute;
  if (result) *result = cudaDriverEntryPointSuccess;
  return OK;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **found, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, found, 0, flags, result);
}
