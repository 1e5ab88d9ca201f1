// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_ends.h"

#include <cstddef>
#include <cstring>

#include "core/gpu_settings.h"

namespace hvd {

struct GpuEnds::Library {
  const Nccl* nccl = nullptr;
  std::string why_not;
};

const Nccl* GpuEnds::nccl() const { return library_ ? library_->nccl : nullptr; }

const NcclPassport* GpuEnds::Of(int ordinal) {
  if (const auto found = passports_.find(ordinal); found != passports_.end()) return &found->second;
  const bool wanted = settings_.gpu_transport == kGpuAuto || settings_.gpu_transport == kGpuNccl;
  if (wanted && why_not_.empty() && !job_) {
    library_ = std::make_shared<Library>();
    const NcclFiles files{settings_.nccl_library, settings_.nccl_bundled};
    job_ =
        devices_->launcher().Put([library = library_, files] { library->nccl = Nccl::Open(files, &library->why_not); });
  }
  if (job_ && !job_->done.load(std::memory_order_acquire)) return nullptr;
  NcclPassport passport = PassportWith(settings_);
  passport.uuid = devices_->Use(ordinal)->uuid();
  const std::string why_not = !why_not_.empty() ? why_not_ : job_ ? job_->error + library_->why_not : "";
  if (nccl() && why_not.empty()) passport.version = nccl()->version;
  why_not.copy(passport.why_not.data(), passport.why_not.size() - 1);
  return &passports_.emplace(ordinal, passport).first->second;
}

std::string GpuEnds::Encode(const NcclPassport& passport) {
  const size_t bytes = offsetof(NcclPassport, why_not) + strnlen(passport.why_not.data(), passport.why_not.size());
  return std::string(reinterpret_cast<const char*>(&passport), bytes);
}

bool GpuEnds::Decode(std::string_view bytes, NcclPassport* passport) {
  if (bytes.size() < offsetof(NcclPassport, why_not) || bytes.size() >= sizeof *passport) return false;
  *passport = {};
  std::memcpy(passport, bytes.data(), bytes.size());
  return true;
}

std::string GpuEnds::Against(const NcclPassport& sender, int from, const NcclPassport& receiver, int to) {
  const std::vector<NcclPassport> both{sender, receiver};
  const std::string gpus = AgainstTheirGpus(both, {from, to});
  return gpus.empty() ? AgainstTheirLibraries(both, {from, to}) : gpus;
}

bool GpuEnds::Insists(const NcclPassport& sender, const NcclPassport& receiver) {
  return sender.wish == kGpuNccl || receiver.wish == kGpuNccl;
}

}  // namespace hvd
