// SPDX-License-Identifier: Apache-2.0
// Whole worlds of several hosts. Every algorithm between hosts, with one and two ranks on each host, gives on every
// rank exactly the bits that its order of additions promises, however tensors are fused.
#include <cstring>
#include <random>

#include "base/half.h"
#include "collectives/doubling.h"
#include "collectives/kernels.h"
#include "core/execution.h"
#include "tests/whole_world.h"

using hvd::DType;
using hvd::HostAlgorithm;
using hvd::OpKind;
using hvd::ReduceOp;
using hvd::Reduction;
using hvd::testing::Layout;
using hvd::testing::Rank;
using hvd::testing::RunWorld;

namespace {

using Bytes = std::vector<std::byte>;

struct Case {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  size_t count = 1000;
  double prescale = 1.0, postscale = 1.0;
};

bool SameBits(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string NameOf(const Case& wanted) {
  return std::string(hvd::NameOf(wanted.dtype)) + "." + hvd::NameOf(wanted.op) + "." + std::to_string(wanted.count) +
         "." + std::to_string(wanted.prescale);
}

bool IsRounded(DType dtype) { return hvd_is_floating(static_cast<int32_t>(dtype)) && hvd::SizeOf(dtype) < 4; }

// Return numbers whose sum has different bits for every order of additions, in any type.
Bytes Input(const Case& wanted, int rank) {
  std::minstd_rand random(static_cast<unsigned>(rank) * 7919 + static_cast<unsigned>(wanted.count));
  random.discard(3);  // skip the first numbers, because adjacent seeds give similar ones
  Bytes bytes(wanted.count * hvd::SizeOf(wanted.dtype));
  for (size_t i = 0; i < wanted.count; ++i) {
    const float number = static_cast<float>(static_cast<int32_t>(2 * random())) / 1e9f;
    std::byte* const to = bytes.data() + i * hvd::SizeOf(wanted.dtype);
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
    switch (wanted.dtype) {
      case DType::kFloat32:
        put(number);
        break;
      case DType::kFloat64:
        put(static_cast<double>(number) / 3);
        break;
      case DType::kFloat16:
        put(hvd::Float16FromFloat(number));
        break;
      case DType::kBFloat16:
        put(hvd::BFloat16FromFloat(number));
        break;
      case DType::kFloat8E4M3:
        put(hvd::Float8E4M3FromFloat(number));
        break;
      case DType::kFloat8E5M2:
        put(hvd::Float8E5M2FromFloat(number));
        break;
      case DType::kBool:
        put(static_cast<uint8_t>(random() % 4 == 0));
        break;
      default:
        for (size_t b = 0; b < hvd::SizeOf(wanted.dtype); ++b) to[b] = static_cast<std::byte>(random() >> 8);
    }
  }
  return bytes;
}

Bytes Combined(const Reduction& reduction, const std::vector<Bytes>& sources) {
  Bytes to(sources[0].size());
  std::vector<const void*> from;
  for (const Bytes& source : sources) from.push_back(source.data());
  Combine(reduction, to.data(), nullptr, from.data(), static_cast<int>(from.size()),
          to.size() / hvd::SizeOf(reduction.dtype));
  return to;
}

Bytes Converted(const Bytes& from, DType dtype, bool widen) {
  const size_t element = hvd::SizeOf(dtype), count = from.size() / (widen ? element : 4);
  Bytes to(count * (widen ? 4 : element));
  for (size_t i = 0; i < count; ++i) {
    uint16_t small = 0;
    float wide = 0;
    std::memcpy(widen ? static_cast<void*>(&small) : &wide, from.data() + i * (widen ? element : 4),
                widen ? element : 4);
    switch (dtype) {
      case DType::kFloat16:
        widen ? void(wide = hvd::FloatFromFloat16(small)) : void(small = hvd::Float16FromFloat(wide));
        break;
      case DType::kBFloat16:
        widen ? void(wide = hvd::FloatFromBFloat16(small)) : void(small = hvd::BFloat16FromFloat(wide));
        break;
      case DType::kFloat8E4M3:
        widen ? void(wide = hvd::FloatFromFloat8E4M3(static_cast<uint8_t>(small)))
              : void(small = hvd::Float8E4M3FromFloat(wide));
        break;
      default:
        widen ? void(wide = hvd::FloatFromFloat8E5M2(static_cast<uint8_t>(small)))
              : void(small = hvd::Float8E5M2FromFloat(wide));
    }
    std::memcpy(to.data() + i * (widen ? 4 : element), widen ? static_cast<void*>(&wide) : &small, widen ? 4 : element);
  }
  return to;
}

// Reduce with a binary tree over hosts, adjacent hosts first. Hosts beyond a power of two are first added to an
// adjacent host.
Bytes Tree(Reduction reduction, std::vector<Bytes> hosts) {
  const DType dtype = reduction.dtype;
  const bool wide = IsRounded(dtype) && reduction.op != ReduceOp::kMin && reduction.op != ReduceOp::kMax;
  if (wide) {
    for (Bytes& host : hosts) host = Converted(host, dtype, true);
    reduction.dtype = DType::kFloat32;
  }
  const Reduction inner{reduction.dtype, reduction.op, 1.0, 1.0, 1};
  size_t power = 1;
  while (2 * power <= hosts.size()) power *= 2;
  const size_t beyond = hosts.size() - power;
  std::vector<Bytes> level;
  for (size_t i = 0; i < beyond; ++i) level.push_back(Combined(inner, {hosts[2 * i], hosts[2 * i + 1]}));
  for (size_t i = 2 * beyond; i < hosts.size(); ++i) level.push_back(hosts[i]);
  while (level.size() > 1) {
    std::vector<Bytes> next;
    for (size_t i = 0; i < level.size(); i += 2) {
      next.push_back(Combined(level.size() == 2 ? reduction : inner, {level[i], level[i + 1]}));
    }
    level = std::move(next);
  }
  return wide ? Converted(level[0], dtype, false) : level[0];
}

template <typename T>
void PutExactAverage(const std::vector<Bytes>& inputs, Bytes* to) {
  for (size_t i = 0; i < to->size(); i += sizeof(T)) {
    int64_t sum = 0;
    for (const Bytes& input : inputs) {
      T value;
      std::memcpy(&value, input.data() + i, sizeof value);
      sum += value;
    }
    const T average = static_cast<T>(sum / static_cast<int64_t>(inputs.size()));
    std::memcpy(to->data() + i, &average, sizeof average);
  }
}

// Compute the average of integers under 64 bits, which does not depend on the order of sums. Return false for other
// cases.
bool ExactAverage(const Case& wanted, int ranks, Bytes* to) {
  if (wanted.op != ReduceOp::kAverage) return false;
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(Input(wanted, rank));
  to->resize(inputs[0].size());
  switch (wanted.dtype) {
    case DType::kUInt8:
      return PutExactAverage<uint8_t>(inputs, to), true;
    case DType::kInt8:
      return PutExactAverage<int8_t>(inputs, to), true;
    case DType::kUInt16:
      return PutExactAverage<uint16_t>(inputs, to), true;
    case DType::kInt16:
      return PutExactAverage<int16_t>(inputs, to), true;
    case DType::kUInt32:
      return PutExactAverage<uint32_t>(inputs, to), true;
    case DType::kInt32:
      return PutExactAverage<int32_t>(inputs, to), true;
    default:
      return false;
  }
}

Bytes Expected(const Case& wanted, int hosts, int on_each, HostAlgorithm algorithm) {
  if (Bytes exact; ExactAverage(wanted, hosts * on_each, &exact)) return exact;
  hvd::Request request;
  request.dtype = wanted.dtype;
  request.op = wanted.op;
  request.prescale = wanted.prescale;
  request.postscale = wanted.postscale;
  const Reduction reduction = hvd::ReductionOf(request, static_cast<size_t>(hosts * on_each));
  const Reduction inside{reduction.dtype, reduction.op, 1.0, 1.0, 1};
  std::vector<Bytes> by_host;
  for (int host = 0; host < hosts; ++host) {
    std::vector<Bytes> members;
    for (int i = 0; i < on_each; ++i) {
      Bytes& input = members.emplace_back(Input(wanted, host * on_each + i));
      hvd::ScaleCopy(wanted.dtype, input.data(), input.data(), wanted.count, wanted.prescale);
    }
    by_host.push_back(Combined(inside, members));
  }
  return hvd::SumsInOrder(algorithm) ? Combined(reduction, by_host) : Tree(reduction, by_host);
}

std::vector<Case> EveryDtypeAndOp() {
  std::vector<Case> cases;
  for (int dtype = 0; dtype < hvd::kDTypeCount; ++dtype) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (static_cast<DType>(dtype) == DType::kBool && op == ReduceOp::kAverage) continue;
      cases.push_back({static_cast<DType>(dtype), op, 777});
    }
  }
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    cases.push_back({dtype, ReduceOp::kSum, 777, 0.3, 1.7});
  }
  return cases;
}

std::vector<Case> EverySize(bool large) {
  std::vector<Case> cases;
  for (size_t count : {1, 17, 1500, 3000, 40000}) cases.push_back({DType::kFloat32, ReduceOp::kSum, count});
  for (size_t count : {1, 5000}) cases.push_back({DType::kBFloat16, ReduceOp::kSum, count});
  if (large) cases.push_back({DType::kFloat32, ReduceOp::kAverage, 600000});
  return cases;
}

std::unique_ptr<hvd::Operation> Allreduce(Rank& self, const Case& wanted, const std::string& name, const Bytes& in,
                                          Bytes* out) {
  auto operation = self.Operation(OpKind::kAllreduce, name, wanted.dtype, {static_cast<int64_t>(wanted.count)},
                                  in.data(), out->data());
  operation->request.op = wanted.op;
  operation->request.prescale = wanted.prescale;
  operation->request.postscale = wanted.postscale;
  return operation;
}

// Reduce each tensor alone, twice (the second time from the cache), then all of them as one group, in place.
void CheckSizes(Rank& self, const std::vector<Case>& cases, const std::vector<Bytes>& expected) {
  for (size_t i = 0; i < cases.size(); ++i) {
    const Bytes in = Input(cases[i], self.rank());
    for (int round = 0; round < 2; ++round) {
      Bytes out(in.size());
      const hvd::Status status = self.Run(Allreduce(self, cases[i], NameOf(cases[i]), in, &out));
      CHECK_MESSAGE(status.ok(), status.text);
      CHECK_MESSAGE(SameBits(out, expected[i]), "alone: " << NameOf(cases[i]));
    }
  }
  std::vector<Bytes> data;
  for (const Case& wanted : cases) data.push_back(Input(wanted, self.rank()));
  std::vector<std::unique_ptr<hvd::Operation>> group;
  for (size_t i = 0; i < cases.size(); ++i) {
    group.push_back(Allreduce(self, cases[i], "group." + NameOf(cases[i]), data[i], &data[i]));
    group.back()->request.group = "group";
    group.back()->request.group_size = static_cast<uint32_t>(cases.size());
  }
  hvd::Status status;
  const int64_t handle = self.world().Submit(std::move(group), true, nullptr, &status);
  CHECK_MESSAGE(status.ok(), status.text);
  status = self.Wait(handle);
  CHECK_MESSAGE(status.ok(), status.text);
  self.world().Release(handle);
  for (size_t i = 0; i < cases.size(); ++i)
    CHECK_MESSAGE(SameBits(data[i], expected[i]), "fused: " << NameOf(cases[i]));
}

void CheckAtOnce(Rank& self, const std::vector<Case>& cases, const std::vector<Bytes>& expected) {
  std::vector<Bytes> data;
  std::vector<int64_t> handles;
  for (const Case& wanted : cases) data.push_back(Input(wanted, self.rank()));
  for (size_t i = 0; i < cases.size(); ++i) {
    handles.push_back(self.Submit(Allreduce(self, cases[i], NameOf(cases[i]), data[i], &data[i])));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    const hvd::Status status = self.Wait(handles[i]);
    CHECK_MESSAGE(status.ok(), status.text);
    CHECK_MESSAGE(SameBits(data[i], expected[i]), NameOf(cases[i]));
    self.world().Release(handles[i]);
  }
}

std::function<void(hvd::Settings*)> With(int algorithm, bool deterministic = false) {
  return [=](hvd::Settings* settings) {
    settings->host_algorithm = algorithm + 1;
    settings->deterministic = deterministic;
  };
}

uint64_t Streams(Rank& self) {
  const std::string described = self.world().Describe(), key = "\"streams\": ";
  return std::stoull(described.substr(described.find(key) + key.size()));
}

// Check every layout. Together the layouts cover every dtype and op several times; those of 3, 4 and 5 hosts with one
// rank each cover all.
void CheckEveryLayout(HostAlgorithm algorithm, int most_hosts) {
  const std::vector<Case> every = EveryDtypeAndOp();
  for (int hosts = 2; hosts <= most_hosts; ++hosts) {
    for (int on_each : {1, 2}) {
      CAPTURE(hosts);
      CAPTURE(on_each);
      std::vector<Case> kinds;
      for (size_t i = 0; i < every.size(); ++i) {
        if ((hosts >= 3 && hosts <= 5 && on_each == 1) || (i + static_cast<size_t>(hosts)) % 5 == 0)
          kinds.push_back(every[i]);
      }
      const std::vector<Case> sizes = EverySize(on_each == 1 && hosts == 3);
      std::vector<Bytes> of_kinds, of_sizes;
      for (const Case& wanted : kinds) of_kinds.push_back(Expected(wanted, hosts, on_each, algorithm));
      for (const Case& wanted : sizes) of_sizes.push_back(Expected(wanted, hosts, on_each, algorithm));
      RunWorld({hosts * on_each, hosts, true, 4096, With(static_cast<int>(algorithm))}, [&](Rank& self) {
        CheckSizes(self, sizes, of_sizes);
        CheckAtOnce(self, kinds, of_kinds);
      });
    }
  }
}

}  // namespace

TEST_CASE("between hosts: direct exchange gives the bits of its order for every layout, dtype and op") {
  // More hosts add nothing, because direct exchange does not depend on powers of two.
  CheckEveryLayout(HostAlgorithm::kDirect, 5);
}

TEST_CASE("between hosts: a ring gives the bits of its order for every layout, dtype and op") {
  CheckEveryLayout(HostAlgorithm::kRing, 8);
}

TEST_CASE("between hosts: doubling gives the bits of its order for every layout, dtype and op") {
  CheckEveryLayout(HostAlgorithm::kDoubling, 8);
}

TEST_CASE("between hosts: deterministic sums are in the order of ranks, whatever is asked for") {
  const std::vector<Case> sizes = EverySize(false);
  std::vector<Bytes> expected;
  for (const Case& wanted : sizes) expected.push_back(Expected(wanted, 5, 1, HostAlgorithm::kDirect));
  for (int algorithm : {-1, 0, 1, 2}) {
    CAPTURE(algorithm);
    RunWorld({5, 5, true, 4096, With(algorithm, true)}, [&](Rank& self) { CheckSizes(self, sizes, expected); });
  }
}

TEST_CASE("between hosts: a rank connects to its neighbours in the ring, and to one partner for each doubling") {
  constexpr int kHosts = 16;
  for (HostAlgorithm algorithm : {HostAlgorithm::kRing, HostAlgorithm::kDoubling, HostAlgorithm::kDirect}) {
    CAPTURE(hvd::NameOf(algorithm));
    RunWorld({kHosts, kHosts, true, 4096, With(static_cast<int>(algorithm))}, [&](Rank& self) {
      std::vector<float> data(20000, 1.0f);
      CHECK(self.Run(self.Operation(OpKind::kAllreduce, "x", DType::kFloat32, {20000}, data.data(), data.data())).ok());
      CHECK(data[19999] == kHosts);
      const uint64_t control = self.rank() == 0 ? kHosts - 1 : 1, data_streams = Streams(self) - control;
      // One lane to each of the two neighbours, with two streams each.
      if (algorithm == HostAlgorithm::kRing) CHECK(data_streams <= 4);
      if (algorithm == HostAlgorithm::kDoubling) CHECK(data_streams == 4);  // one for each of log2(16) partners
      if (algorithm == HostAlgorithm::kDirect) CHECK(data_streams == 2 * (kHosts - 1));
    });
  }
}

TEST_CASE("between hosts: many hosts of two start, reduce, and know few of each other") {
  constexpr int kHosts = 32, kRanks = 2 * kHosts;
  RunWorld({kRanks, kHosts, true, 4096}, [](Rank& self) {
    const int64_t sum = kRanks * (kRanks - 1) / 2;
    for (int64_t count : {10, 300000}) {  // the first size uses doubling, the second one the ring
      std::vector<int32_t> data(static_cast<size_t>(count), self.rank());
      const std::string name = "x" + std::to_string(count);
      CHECK(self.Run(self.Operation(OpKind::kAllreduce, name, DType::kInt32, {count}, data.data(), data.data())).ok());
      CHECK(data.front() == sum);
      CHECK(data.back() == sum);
    }
    const uint64_t control = self.rank() == 0 ? kHosts - 1 : self.rank() % 2 == 0 ? 1 : 0;
    // Doubling, ring, and liveness sockets where shared memory does not serve for them.
    CHECK(Streams(self) - control <= 5 + 4 + 2);
  });
}

TEST_CASE("between hosts: members take as many steps as each other, and what one sends another awaits") {
  using Move = hvd::DoublingBetweenHosts::Move;
  for (int members = 2; members <= 33; ++members) {
    for (bool whole : {false, true}) {
      for (size_t length : {size_t{0}, size_t{4}, size_t{64}, size_t{1000}, size_t{100000}}) {
        std::vector<std::vector<Move>> plans;
        for (int me = 0; me < members; ++me) {
          plans.push_back(hvd::DoublingBetweenHosts::Plan(members, me, length, whole));
          REQUIRE(plans[static_cast<size_t>(me)].size() == plans[0].size());
        }
        for (int me = 0; me < members; ++me) {
          for (size_t step = 0; step < plans[0].size(); ++step) {
            const Move& move = plans[static_cast<size_t>(me)][step];
            if (move.to < 0) continue;
            const Move& other = plans[static_cast<size_t>(move.to)][step];
            REQUIRE(other.from == me);
            REQUIRE(other.awaited.begin == move.sent.begin);
            REQUIRE(other.awaited.length == move.sent.length);
          }
        }
      }
    }
  }
}
