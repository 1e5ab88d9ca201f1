// SPDX-License-Identifier: Apache-2.0
#include "core/peer_watch.h"

#include "agreement/control.h"

namespace hvd {
namespace {

// Extra time for the first message of a rank that has never been connected, which may itself be waiting for a lost
// rank.
constexpr std::chrono::milliseconds kBeforeFirstWord{500};

}  // namespace

// A rank may have messages for us while we have none for it, for example when only its caller waits for a small tensor.
// Unless we accept its link, we neither receive its messages nor send it heartbeats.
void PeerWatch::AcceptLinks(const Leaving& leaving) {
  for (const StreamKey& key : around_.connector->Offered()) {
    if (!(key == StreamKey{key.peer})) continue;
    services_.mailbox->Expect(key.peer, false);
    leaving.SendNoticeTo(key.peer);
  }
}

Departures::Verdict PeerWatch::Look(Clock::time_point now) {
  if (around_.arena) {
    reinterpret_cast<ArenaHead*>(around_.arena->at(0))->pulse.fetch_add(1, std::memory_order_relaxed);
  }
  for (const Neighbour& neighbour : around_.neighbours->all()) {
    if (!neighbour.arena) continue;
    const uint64_t pulse = neighbour.head()->pulse.load(std::memory_order_relaxed);
    auto [seen, first] = pulses_.emplace(neighbour.rank, pulse);
    if (first) departures_.Expect(neighbour.rank, now);
    if (seen->second != pulse) departures_.Heard(neighbour.rank, now);
    seen->second = pulse;
  }
  Departures::Verdict verdict;
  for (const Mailbox::Sign& sign : services_.mailbox->SignsOfLife()) {
    departures_.Expect(sign.rank, sign.up ? now : now + kBeforeFirstWord);
    if (sign.up) {
      departures_.Heard(sign.rank, now - sign.age);
      services_.mailbox->Send(sign.rank, control::EncodePing());
      ++services_.counters->pings;
    } else if (verdict.what == Departures::Verdict::What::kNothing && !departures_.meant_to_leave(sign.rank) &&
               around_.connector->Deserted(sign.rank)) {
      verdict = departures_.OnDeserted(sign.rank, Clock::now());
    }
  }
  return verdict;
}

void PeerWatch::OnEvent(int fd) {
  for (Neighbour& neighbour : around_.neighbours->all()) {
    if (neighbour.life_line.fd() == fd) spoke_.push_back(&neighbour);
  }
}

std::vector<Neighbour*> PeerWatch::ReadSpoken() {
  std::vector<Neighbour*> spoke = std::exchange(spoke_, {});
  for (Neighbour* neighbour : spoke) {
    neighbour->life_line.Read();
    if (neighbour->life_line.farewell()) departures_.OnFarewell(neighbour->rank);
  }
  return spoke;
}

}  // namespace hvd
