// SPDX-License-Identifier: Apache-2.0
// NCCL, opened when the members of a process set first need it. If the framework has loaded NCCL already, that one is
// used. The declarations are the stable part of its binary interface since 2.14; RCCL has these functions too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.h"
#include "devices/cuda.h"

namespace hvd {

using NcclComm = struct NcclCommOpaque*;

struct NcclId {  // id with which the members of a communicator find each other
  char bytes[128];
};

// Configuration as of 2.14; newer versions treat missing fields as unset.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };
enum NcclOp : int { kNcclSum = 0, kNcclProduct = 1, kNcclMax = 2, kNcclMin = 3 };
enum NcclType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
  kNcclNoType = -1,
};
enum : int { kNcclOnHost = 1 };  // says that the factor lies in host memory

// X(name in the table, name in the library, parameters)
#define HVD_NCCL_FUNCTIONS(X)                                                                          \
  X(get_version, "ncclGetVersion", (int*))                                                             \
  X(make_id, "ncclGetUniqueId", (NcclId*))                                                             \
  X(init_rank, "ncclCommInitRankConfig", (NcclComm*, int, NcclId, int, NcclConfig*))                   \
  X(finalize, "ncclCommFinalize", (NcclComm))                                                          \
  X(destroy, "ncclCommDestroy", (NcclComm))                                                            \
  X(abort, "ncclCommAbort", (NcclComm))                                                                \
  X(async_error, "ncclCommGetAsyncError", (NcclComm, int*))                                            \
  X(group_start, "ncclGroupStart", ())                                                                 \
  X(group_end, "ncclGroupEnd", ())                                                                     \
  X(make_factor, "ncclRedOpCreatePreMulSum", (int*, void*, int, int, NcclComm))                        \
  X(drop_factor, "ncclRedOpDestroy", (int, NcclComm))                                                  \
  X(all_reduce, "ncclAllReduce", (const void*, void*, size_t, int, int, NcclComm, CudaStream))         \
  X(reduce, "ncclReduce", (const void*, void*, size_t, int, int, int, NcclComm, CudaStream))           \
  X(reduce_scatter, "ncclReduceScatter", (const void*, void*, size_t, int, int, NcclComm, CudaStream)) \
  X(broadcast, "ncclBroadcast", (const void*, void*, size_t, int, int, NcclComm, CudaStream))          \
  X(all_gather, "ncclAllGather", (const void*, void*, size_t, int, NcclComm, CudaStream))              \
  X(send, "ncclSend", (const void*, size_t, int, int, NcclComm, CudaStream))                           \
  X(receive, "ncclRecv", (void*, size_t, int, int, NcclComm, CudaStream))

// Files in which the first caller of Open looks for NCCL.
struct NcclFiles {
  std::string named;  // if not empty, the only file that is tried
  // Library from a wheel, used if none is loaded; if this is empty or fails to open, the system's library is used.
  std::string bundled;
};

struct Nccl {
#define HVD_NCCL_MEMBER(member, name, parameters) int(*member) parameters = nullptr;
  HVD_NCCL_FUNCTIONS(HVD_NCCL_MEMBER)
#undef HVD_NCCL_MEMBER
  const char* (*error_text)(int) = nullptr;
  const char* (*last_error)(NcclComm) = nullptr;
  int version = 0;  // for example 22809 for 2.28.9

  // Return the NCCL of this process, or null with the reason in `why`. The first call opens it and may take a while.
  static const Nccl* Open(const NcclFiles& files, std::string* why);
  // Return e.g. "unhandled system error: ..." with details from the communicator, which may be null.
  std::string Describe(int result, NcclComm comm) const;
};

// Return e.g. "2.28.9".
std::string NcclVersionText(int version);
// Return NCCL's type, or kNcclNoType if NCCL cannot sum elements of this type.
NcclType NcclTypeOf(DType dtype);

}  // namespace hvd
