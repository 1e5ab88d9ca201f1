// SPDX-License-Identifier: Apache-2.0
// Byte counters: exact sums for collectives of known sizes, control and data separately, and their JSON.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/whole_world.h"
#include "transport/frame.h"
#include "transport/socket.h"
#include "transport/traffic.h"

using hvd::DType;
using hvd::Fd;
using hvd::OpKind;
using hvd::Traffic;
using hvd::TrafficSums;
using namespace hvd::testing;

namespace {

// Run one collective of `bytes` bytes on each rank, `times` times under one name. Return the counters by rank.
std::vector<TrafficSums> CountBytes(const Layout& layout, OpKind kind, int64_t bytes, int times = 1) {
  std::vector<TrafficSums> sums(static_cast<size_t>(layout.ranks));
  RunWorld(layout, [&](Rank& self) {
    std::vector<uint8_t> in(static_cast<size_t>(bytes), 1), out(in.size());
    for (int i = 0; i < times; ++i) {
      auto operation = self.Operation<uint8_t>(kind, "x", DType::kUInt8, {bytes}, in.data(),
                                               kind == OpKind::kAllgather ? nullptr : out.data());
      const hvd::Status status = self.Run(std::move(operation));
      CHECK_MESSAGE(status.ok(), status.text);
    }
    sums[static_cast<size_t>(self.rank())] = self.world().traffic();
  });
  return sums;
}

uint64_t Sum(const std::vector<TrafficSums>& all, uint64_t TrafficSums::* counter) {
  return std::accumulate(all.begin(), all.end(), uint64_t{0},
                         [counter](uint64_t sum, const TrafficSums& one) { return sum + one.*counter; });
}

constexpr int64_t kBytes = 3 * 64 * 4 * 100;  // the shares of 2, 3 and 4 members are whole cache lines

}  // namespace

TEST_CASE("traffic: an allreduce over sockets moves 2(N-1)/N of its bytes on each rank") {
  for (int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto others = static_cast<uint64_t>(ranks - 1);
    for (const TrafficSums& sums : CountBytes({ranks, 1, false}, OpKind::kAllreduce, kBytes)) {
      CHECK(sums.data_sent == 2 * others * kBytes / static_cast<uint64_t>(ranks));
      CHECK(sums.data_received == sums.data_sent);
      CHECK(sums.control_sent > 0);
      CHECK(sums.control_received > 0);
      CHECK(sums.memory_read + sums.memory_written == 0);
      CHECK(sums.data_is_known);
    }
  }
}

TEST_CASE("traffic: small tensors count as data, with and without the leader's word") {
  constexpr int64_t kSmall = 24;
  constexpr int kTimes = 5;  // the first one is negotiated, the others travel inside control messages
  const auto by_socket = CountBytes({2, 1, false}, OpKind::kAllreduce, kSmall, kTimes);
  for (const TrafficSums& sums : by_socket) {
    CHECK(sums.data_sent == kTimes * kSmall);
    CHECK(sums.data_received == kTimes * kSmall);
  }
  for (const TrafficSums& sums : CountBytes({3, 1}, OpKind::kAllreduce, kSmall, kTimes)) {
    CHECK(sums.memory_read == 2 * kTimes * kSmall);
    CHECK(sums.data_sent + sums.data_received == 0);
  }
}

TEST_CASE("traffic: parts that ranks pass on between hosts are sent and received alike") {
  for (OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather}) {
    const auto sums = CountBytes({6, 3}, kind, 24, 4);
    CHECK(Sum(sums, &TrafficSums::data_sent) > 0);
    CHECK(Sum(sums, &TrafficSums::data_sent) == Sum(sums, &TrafficSums::data_received));
    CHECK(Sum(sums, &TrafficSums::memory_read) > 0);
  }
}

TEST_CASE("traffic: in shared memory, what a rank reads from the others") {
  for (int ranks : {2, 4}) {
    CAPTURE(ranks);
    const auto others = static_cast<uint64_t>(ranks - 1);
    for (const TrafficSums& sums : CountBytes({ranks, 1}, OpKind::kAllreduce, kBytes)) {
      CHECK(sums.memory_read == 2 * others * kBytes / static_cast<uint64_t>(ranks));
      CHECK(sums.memory_written == 0);
      CHECK(sums.data_sent + sums.data_received + sums.control_sent + sums.control_received == 0);
    }
    const auto gathered = CountBytes({ranks, 1}, OpKind::kAllgather, kBytes);
    const uint64_t moved = Sum(gathered, &TrafficSums::memory_read) + Sum(gathered, &TrafficSums::memory_written);
    // The bytes of each other rank, and a few in which ranks exchange the offsets of their outputs.
    CHECK(moved >= others * kBytes * static_cast<uint64_t>(ranks));
    CHECK(moved <= others * kBytes * static_cast<uint64_t>(ranks) + 1000);
  }
}

TEST_CASE("traffic: frames count their headers as control, also when the socket takes them in pieces") {
  constexpr uint64_t kKey[2] = {1, 2};
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Fd near(ends[0]), far(ends[1]);
  const int little = 4096;
  setsockopt(near.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  Traffic traffic;
  hvd::FrameWriter writer(kKey, &traffic);
  const std::string covered(100, 'c'), open(50'000, 'o');
  CHECK(writer.Append(covered, {}, 60));
  CHECK(writer.Flush(near.get()) == hvd::FrameIo::kDone);
  CHECK(traffic.control_sent.sum() == hvd::kFrameHeaderSize + 40);
  CHECK(traffic.data_sent.sum() == 60);
  CHECK(writer.Send(near.get(), covered, open));
  CHECK(writer.pending() > 0);
  const auto sent = [&traffic] { return traffic.control_sent.sum() + traffic.data_sent.sum(); };
  const uint64_t whole = 2 * (hvd::kFrameHeaderSize + covered.size()) + open.size();
  CHECK(sent() == whole - writer.pending());
  std::vector<char> taken(1 << 16);
  while (writer.Flush(near.get()) != hvd::FrameIo::kDone) {
    REQUIRE(hvd::ReceiveSome(far.get(), taken.data(), taken.size()) > 0);
    CHECK(sent() == whole - writer.pending());
  }
  CHECK(traffic.control_sent.sum() == 2 * hvd::kFrameHeaderSize + 40 + 100);
  CHECK(traffic.data_sent.sum() == 60 + open.size());
}

TEST_CASE("traffic: as JSON, with null for what another library moved") {
  Traffic traffic;
  traffic.data_sent.Add(1);
  traffic.data_received.Add(2);
  traffic.control_sent.Add(3);
  traffic.control_received.Add(4);
  traffic.memory_read.Add(5);
  traffic.memory_written.Add(6);
  CHECK(ToJson(traffic.Load()) ==
        "{\"data_bytes_sent\": 1, \"data_bytes_received\": 2, \"control_bytes_sent\": 3, "
        "\"control_bytes_received\": 4, \"shared_memory_bytes_read\": 5, \"shared_memory_bytes_written\": 6}");
  traffic.data_is_known = false;
  CHECK(ToJson(traffic.Load()).find("{\"data_bytes_sent\": null, \"data_bytes_received\": null, \"control") == 0);
}
