/* NCCL over shared memory, for torch's own ProcessGroupNCCL. A collective happens when it is called, and refuses memory of the host, as NCCL
 * does. Of the functions that are not here, build.py makes those of groups and communicators do nothing, and others fail. */
#define _GNU_SOURCE
#include <nccl.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOT (4ull << 20) /* bytes that a process exchanges at a time */
#define SECONDS 120
#define MOST 16 /* processes */

int softgpu_kind(const void *address);

typedef struct {
  atomic_int arrived, round;
  char padding[56];
  char calls[MOST][64]; /* what each process is in */
  char slots[];
} Room;
struct ncclComm {
  Room *room;
  int rank, size, splits;
  char name[64];
};

static char *slot(ncclComm_t c, int rank) { return c->room->slots + rank * SLOT; }

static void barrier(ncclComm_t c) {
  int round = atomic_load(&c->room->round);
  if (atomic_fetch_add(&c->room->arrived, 1) == c->size - 1) {
    atomic_store(&c->room->arrived, 0);
    atomic_fetch_add(&c->room->round, 1);
    return;
  }
  for (long tries = 0; atomic_load(&c->room->round) == round; tries++) {
    usleep(50);
    if (tries > SECONDS * 20000l) abort();
  }
}

static char said[200];

/* All processes have filled their slots, each for the same collective. */
static int differ(ncclComm_t c, const char *kind, size_t n, ncclDataType_t type) {
  snprintf(c->room->calls[c->rank], sizeof c->room->calls[0], "%s of %zu numbers of type %d", kind, n, type);
  barrier(c);
  for (int rank = 1; rank < c->size; rank++)
    if (strcmp(c->room->calls[0], c->room->calls[rank])) {
      snprintf(said, sizeof said, "process 0 is in %s and process %d in %s", c->room->calls[0], rank, c->room->calls[rank]);
      barrier(c);
      return 1;
    }
  return 0;
}

static int on_host(const void *send, const void *receive) {
  if ((!send || softgpu_kind(send) == 2) && (!receive || softgpu_kind(receive) == 2)) return 0;
  fprintf(stderr, "NCCL was given memory of the host\n");
  return 1;
}

static size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}

static double load(const char *at, ncclDataType_t type) {
  uint32_t bits;
  float wide;
  switch (type) {
    case ncclFloat32: return *(float *)at;
    case ncclFloat64: return *(double *)at;
    case ncclFloat16: return *(_Float16 *)at;
    case ncclBfloat16:
      bits = (uint32_t) * (uint16_t *)at << 16;
      memcpy(&wide, &bits, 4);
      return wide;
    case ncclInt64: return *(int64_t *)at;
    case ncclInt32: return *(int32_t *)at;
    case ncclUint8: return *(uint8_t *)at;
    default: abort();
  }
}

static void store(char *at, ncclDataType_t type, double value) {
  uint32_t bits;
  float wide = value;
  switch (type) {
    case ncclFloat32: *(float *)at = value; break;
    case ncclFloat64: *(double *)at = value; break;
    case ncclFloat16: *(_Float16 *)at = value; break;
    case ncclBfloat16:
      memcpy(&bits, &wide, 4);
      *(uint16_t *)at = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      break;
    case ncclInt64: *(int64_t *)at = value; break;
    case ncclInt32: *(int32_t *)at = value; break;
    case ncclUint8: *(uint8_t *)at = value; break;
    default: abort();
  }
}

static void reduce_slots(char *to, ncclComm_t c, size_t first, size_t n, ncclDataType_t type, ncclRedOp_t op) {
  for (size_t i = 0; i < n; i++) {
    size_t at = (first + i) * width(type);
    double total = load(slot(c, 0) + at, type);
    for (int rank = 1; rank < c->size; rank++) {
      double value = load(slot(c, rank) + at, type);
      if (op == ncclMax) total = value > total || value != value ? value : total;
      else if (op == ncclMin) total = value < total || value != value ? value : total;
      else total += value;
    }
    store(to + i * width(type), type, op == ncclAvg ? total / c->size : total);
  }
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  size_t w = width(type), step = SLOT / w;
  if (n && on_host(from, to)) return ncclInvalidArgument;
  for (size_t at = 0; at < n; at += step) {
    size_t part = n - at < step ? n - at : step;
    memcpy(slot(c, c->rank), (char *)from + at * w, part * w);
    if (differ(c, "an all-reduce", n, type)) return ncclInvalidUsage;
    reduce_slots((char *)to + at * w, c, 0, part, type, op);
    barrier(c);
  }
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t c, cudaStream_t s) {
  size_t total = n * width(type);
  if (n && on_host(from, to)) return ncclInvalidArgument;
  for (size_t at = 0; at < total; at += SLOT) {
    size_t part = total - at < SLOT ? total - at : SLOT;
    memcpy(slot(c, c->rank), (char *)from + at, part);
    if (differ(c, "an all-gather", n, type)) return ncclInvalidUsage;
    for (int rank = 0; rank < c->size; rank++) memcpy((char *)to + rank * total + at, slot(c, rank), part);
    barrier(c);
  }
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t s) {
  size_t total = n * width(type);
  if (n && on_host(c->rank == root ? from : NULL, to)) return ncclInvalidArgument;
  for (size_t at = 0; at < total; at += SLOT) {
    size_t part = total - at < SLOT ? total - at : SLOT;
    if (c->rank == root) memcpy(slot(c, root), (char *)from + at, part);
    if (differ(c, "a broadcast", n, type)) return ncclInvalidUsage;
    memmove((char *)to + at, slot(c, root), part);
    barrier(c);
  }
  return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  size_t w = width(type), step = SLOT / w / c->size;
  if (n && on_host(from, to)) return ncclInvalidArgument;
  for (size_t at = 0; at < n; at += step) {
    size_t part = n - at < step ? n - at : step;
    for (int rank = 0; rank < c->size; rank++) memcpy(slot(c, c->rank) + rank * part * w, (char *)from + (rank * n + at) * w, part * w);
    if (differ(c, "a reduce-scatter", n, type)) return ncclInvalidUsage;
    reduce_slots((char *)to + at * w, c, c->rank * part, part, type, op);
    barrier(c);
  }
  return ncclSuccess;
}

ncclResult_t ncclBcast(void *at, size_t n, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t s) {
  return ncclBroadcast(at, at, n, type, root, c, s);
}

/* Communicators. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static int count;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, 64, "/softgpu_%d_%lx_%d", getpid(), now.tv_sec * 1000000000l + now.tv_nsec, count++);
  return ncclSuccess;
}

static ncclResult_t join(ncclComm_t *found, int size, const char *name, int rank) {
  struct ncclComm *c = calloc(1, sizeof *c);
  size_t total = sizeof(Room) + size * SLOT;
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (size > MOST || file < 0 || ftruncate(file, total)) return ncclSystemError;
  c->room = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  c->rank = rank;
  c->size = size;
  snprintf(c->name, sizeof c->name, "%s", name);
  barrier(c);
  if (!rank) shm_unlink(name);
  *found = c;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *c, int n, ncclUniqueId id, int rank) { return join(c, n, id.internal, rank); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return join(c, n, id.internal, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t *c, int n, int rank, int ids, ncclUniqueId *id, ncclConfig_t *config) {
  return join(c, n, id[0].internal, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *found, ncclConfig_t *config) {
  char name[64]; /* of all processes, which is how torch splits for a second group of the same processes */
  snprintf(name, sizeof name, "%.40s_%d", c->name, c->splits++);
  return join(found, c->size, name, c->rank);
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n) {
  *n = c->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) {
  *rank = c->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t error) { return error == ncclSuccess ? "no error" : "error of the software NCCL"; }
const char *ncclGetLastError(ncclComm_t c) { return said; }
