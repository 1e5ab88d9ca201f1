// SPDX-License-Identifier: Apache-2.0
#include "devices/nccl.h"

#include <dlfcn.h>

#include <mutex>

namespace hvd {
namespace {

constexpr char kNcclLibrary[] = "libnccl.so.2";
constexpr int kOldestNccl = 21400;

struct OpenedNccl {
  Nccl functions;
  std::string why;
  bool usable = false;
};

void* OpenLibrary(const NcclFiles& files) {
  if (!files.named.empty()) return dlopen(files.named.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (void* const loaded = dlopen(kNcclLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return loaded;
  if (!files.bundled.empty()) {
    if (void* const bundled = dlopen(files.bundled.c_str(), RTLD_NOW | RTLD_LOCAL)) return bundled;
  }
  return dlopen(kNcclLibrary, RTLD_NOW | RTLD_LOCAL);
}

void OpenNcclOnce(OpenedNccl* opened, const NcclFiles& files) {
  void* const library = OpenLibrary(files);
  if (!library) {
    const char* const text = dlerror();
    opened->why = text ? text : std::string(kNcclLibrary) + " cannot be opened";
    return;
  }
  Nccl& nccl = opened->functions;
  nccl.get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  if (!nccl.get_version || nccl.get_version(&nccl.version) != kNcclSuccess || nccl.version < kOldestNccl) {
    opened->why = "NCCL " + (nccl.version ? NcclVersionText(nccl.version) : "of an unknown version") +
                  " is too old: 2.14 or newer is needed";
    return;
  }
#define HVD_NCCL_FIND(member, name, parameters)                                       \
  nccl.member = reinterpret_cast<int(*) parameters>(dlsym(library, name));            \
  if (!nccl.member) {                                                                 \
    opened->why = "NCCL " + NcclVersionText(nccl.version) + " has no function " name; \
    return;                                                                           \
  }
  HVD_NCCL_FUNCTIONS(HVD_NCCL_FIND)
#undef HVD_NCCL_FIND
  nccl.error_text = reinterpret_cast<const char* (*)(int)>(dlsym(library, "ncclGetErrorString"));
  nccl.last_error = reinterpret_cast<const char* (*)(NcclComm)>(dlsym(library, "ncclGetLastError"));
  opened->usable = true;
}

}  // namespace

const Nccl* Nccl::Open(const NcclFiles& files, std::string* why) {
  static OpenedNccl opened;
  static std::once_flag once;
  std::call_once(once, OpenNcclOnce, &opened, files);
  if (opened.usable) return &opened.functions;
  *why = opened.why;
  return nullptr;
}

std::string Nccl::Describe(int result, NcclComm comm) const {
  const char* const text = error_text ? error_text(result) : nullptr;
  const char* const last = last_error ? last_error(comm) : nullptr;
  std::string said = text ? text : "NCCL error " + std::to_string(result);
  if (last && *last) said += std::string(": ") + last;
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return said;
}

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclType NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return kNcclInt8;
    case DType::kUInt8:
      return kNcclUint8;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kUInt32:
      return kNcclUint32;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kUInt64:
      return kNcclUint64;
    case DType::kFloat16:
      return kNcclFloat16;
    case DType::kFloat32:
      return kNcclFloat32;
    case DType::kFloat64:
      return kNcclFloat64;
    case DType::kBFloat16:
      return kNcclBfloat16;
    default:
      return kNcclNoType;
  }
}

}  // namespace hvd
