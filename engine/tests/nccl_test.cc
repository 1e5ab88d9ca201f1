// SPDX-License-Identifier: Apache-2.0
// Decisions about NCCL that need no NCCL: which ranks it supports, and which side applies a reduction's factors.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collectives/nccl_meeting.h"
#include "collectives/over_nccl.h"
#include "core/gpu_settings.h"

namespace {

using hvd::AgainstTheirConnections;
using hvd::AgainstTheirGpus;
using hvd::AgainstTheirLibraries;
using hvd::DType;
using hvd::FactorsFor;
using hvd::NcclPassport;
using hvd::ReduceOp;
using hvd::Reduction;

NcclPassport On(const char* gpu, int32_t wish = hvd::kGpuAuto) {
  NcclPassport passport{};
  std::strncpy(passport.uuid.bytes, gpu, sizeof passport.uuid.bytes - 1);
  passport.wish = wish;
  return passport;
}

NcclPassport With(int version, const char* why_not = "") {
  NcclPassport passport{};
  passport.version = version;
  std::strncpy(passport.why_not.data(), why_not, passport.why_not.size() - 1);
  return passport;
}

TEST_CASE("NCCL serves ranks that have GPUs of their own, and who insists") {
  const std::vector<int> ranks = {2, 5, 7};
  CHECK(AgainstTheirGpus({On("a"), On("b"), On("c")}, ranks).empty());
  // Allowed, because only one of the two ranks on GPU a, the one that leads there, takes part in NCCL.
  CHECK(AgainstTheirGpus({On("a"), On("b"), On("a")}, ranks).empty());
  CHECK(AgainstTheirGpus({On("a"), On("a"), On("a")}, ranks) == "ranks 2, 5, 7 share a GPU, which NCCL refuses");
  CHECK(AgainstTheirGpus({On("a"), On("a", hvd::kGpuNccl), On("a")}, ranks).empty());
  CHECK(AgainstTheirGpus({On("a"), On("b", hvd::kGpuStaged), On("c", hvd::kGpuNccl)}, ranks) ==
        "rank 5 asks for HOROVOD_GPU_TRANSPORT=staged");
  CHECK(AgainstTheirGpus({On("a"), On("b"), On("c", hvd::kGpuOwn)}, ranks) ==
        "rank 7 asks for HOROVOD_GPU_TRANSPORT=own");
}

TEST_CASE("what one rank's settings ask for holds for all") {
  const auto with = [](int32_t wish, int deterministic = 0, uint64_t bytes = 0) {
    hvd::Settings settings;
    settings.gpu_transport = wish;
    settings.deterministic = deterministic;
    settings.gpu_staged_bytes = settings.gpu_slot_bytes = bytes;
    return hvd::PassportWith(settings);
  };
  const auto wishes = [&](int32_t one, int32_t other) { return hvd::WishesOf({with(one), with(other)}); };
  using Pairs = std::vector<std::pair<int32_t, int32_t>>;
  for (const auto& [one, other] : Pairs{{hvd::kGpuAuto, hvd::kGpuStaged}, {hvd::kGpuStaged, hvd::kGpuIpc}}) {
    for (const hvd::GpuWishes& both : {wishes(one, other), wishes(other, one)}) {
      CHECK(both.staged);
      CHECK_FALSE(both.ipc);
      CHECK(both.not_nccl);
    }
  }
  CHECK(wishes(hvd::kGpuAuto, hvd::kGpuIpc).ipc);
  CHECK(wishes(hvd::kGpuOwn, hvd::kGpuNccl).nccl);
  CHECK(wishes(hvd::kGpuOwn, hvd::kGpuNccl).not_nccl);
  CHECK_FALSE(wishes(hvd::kGpuAuto, hvd::kGpuNccl).not_nccl);
  CHECK(hvd::WishesOf({with(hvd::kGpuAuto), with(hvd::kGpuAuto, 1)}).deterministic);
  const hvd::GpuWishes first = hvd::WishesOf({with(hvd::kGpuAuto, 0, 5), with(hvd::kGpuAuto, 0, 7)});
  CHECK(first.staged_bytes == 5);
  CHECK(first.slot_bytes == 5);
}

TEST_CASE("who shares a GPU") {
  CHECK_FALSE(hvd::ShareGpus({On("a"), On("b"), On("c")}));
  CHECK(hvd::ShareGpus({On("a"), On("b"), On("a")}));
  CHECK(hvd::ShareGpus({On("a"), On("a")}));
  CHECK(hvd::ShareGpus({On("a", hvd::kGpuNccl), On("a", hvd::kGpuNccl)}));
}

TEST_CASE("NCCL waits for ranks that come late to what was launched, as long as the job would") {
  using std::chrono::milliseconds;
  hvd::Settings settings;
  CHECK(hvd::LongestLaunch(settings) == milliseconds(300'000));
  settings.stall_shutdown_ms = 5'000;
  CHECK(hvd::LongestLaunch(settings) == milliseconds(300'000));
  settings.stall_shutdown_ms = 1'800'000;
  CHECK(hvd::LongestLaunch(settings) == milliseconds(1'800'000));
}

TEST_CASE("the first member of each GPU leads there") {
  using Members = std::vector<int>;
  const hvd::GpuLayout layout = hvd::LayoutOf({On("b"), On("a"), On("b"), On("c"), On("a")});
  CHECK(layout.shared());
  CHECK(layout.gpus() == 3);
  CHECK(layout.gpu_of() == Members{0, 1, 0, 2, 1});
  CHECK(layout.MembersOn(1) == Members{1, 4});
  CHECK(layout.MostOnOne() == 2);
  CHECK(layout.Leads(1));
  CHECK_FALSE(layout.Leads(2));
  CHECK_FALSE(hvd::LayoutOf({On("a"), On("b")}).shared());
}

TEST_CASE("ranks of one GPU are left to NCCL by who insists on it, and by hosts that it is told of") {
  CHECK_FALSE(hvd::LayoutOf({On("a", hvd::kGpuNccl), On("a", hvd::kGpuNccl)}).shared());
  const auto at = [](const char* host_id, int32_t wish) {
    NcclPassport passport = On("a", wish);
    std::strncpy(passport.host_id.data(), host_id, passport.host_id.size() - 1);
    return passport;
  };
  const auto insists = [&](const char* host_id) { return at(host_id, hvd::kGpuNccl); };
  const hvd::GpuLayout two = hvd::LayoutOf({insists("x"), insists("y"), insists("x")});
  CHECK(two.gpu_of() == std::vector<int>{0, 1, 0});
  CHECK(hvd::LayoutOf({at("x", hvd::kGpuAuto), at("y", hvd::kGpuAuto), On("b")}).gpu_of() == std::vector<int>{0, 0, 1});
  CHECK_FALSE(hvd::ShareGpus({insists("x"), insists("y")}));
  CHECK(hvd::ShareGpus({at("x", hvd::kGpuAuto), at("y", hvd::kGpuAuto)}));
}

TEST_CASE("versions of NCCL are the same on all ranks") {
  const std::vector<int> ranks = {0, 1, 2};
  CHECK(AgainstTheirLibraries({With(22809), With(22809), With(22809)}, ranks).empty());
  CHECK(AgainstTheirLibraries({With(22809), With(22105), With(22809)}, ranks) ==
        "ranks have different versions of NCCL: rank 1 has 2.21.5, ranks 0, 2 have 2.28.9");
  CHECK(AgainstTheirLibraries({With(22809), With(0, "no such file"), With(22809)}, ranks) ==
        "rank 1 has no NCCL: no such file");
  CHECK(AgainstTheirConnections({With(1), With(1), With(1)}, ranks).empty());
  CHECK(AgainstTheirConnections({With(1), With(1), With(0, "nobody answers")}, ranks) == "on rank 2 nobody answers");
}

TEST_CASE("factors cost a pass only where NCCL would round them") {
  const auto of = [](DType dtype, ReduceOp op, double before, double after, int64_t divisor = 1) {
    return FactorsFor(Reduction{dtype, op, before, after, divisor});
  };
  const auto plain = [](const hvd::NcclFactors& it) { return !it.before && !it.after; };
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    CHECK(plain(of(dtype, ReduceOp::kSum, 1.0, 1.0)));
    CHECK(of(dtype, ReduceOp::kSum, 1.0, 0.25).with_sum == 0.25);
    CHECK(plain(of(dtype, ReduceOp::kSum, 0.5, 0.25)));
    CHECK(of(dtype, ReduceOp::kMax, 0.5, 1.0).before);
    CHECK(of(dtype, ReduceOp::kProduct, 1.0, 0.5).after);
  }
  CHECK(plain(of(DType::kFloat32, ReduceOp::kSum, 1.0, 1.0 / 3)));
  const hvd::NcclFactors half = of(DType::kBFloat16, ReduceOp::kSum, 0.5, 1.0 / 3);
  CHECK(half.with_sum == 0.5);
  CHECK(half.after);
  CHECK_FALSE(half.before);
  CHECK(of(DType::kInt32, ReduceOp::kSum, 1.0, 1.0, 3).after);
  CHECK(of(DType::kInt32, ReduceOp::kSum, 0.5, 1.0).before);
  CHECK(plain(of(DType::kInt32, ReduceOp::kMin, 1.0, 1.0)));
}

TEST_CASE("many small tensors share a call") {
  constexpr size_t kMb = size_t{1} << 20;
  CHECK_FALSE(hvd::GoesThroughBuffer(1, 100, 16 * kMb));
  CHECK_FALSE(hvd::GoesThroughBuffer(1, 500 * kMb, 16 * kMb));
  CHECK(hvd::GoesThroughBuffer(2, 100, 16 * kMb));
  CHECK(hvd::GoesThroughBuffer(12, 25 * kMb, 16 * kMb));
  CHECK_FALSE(hvd::GoesThroughBuffer(25, 500 * kMb, 16 * kMb));
  CHECK_FALSE(hvd::GoesThroughBuffer(2, 100, 0));
}

}  // namespace
