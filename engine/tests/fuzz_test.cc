// SPDX-License-Identifier: Apache-2.0
// Very many malformed messages, made from valid ones by a seeded mutator. No fuzzing support of the compiler is needed.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "agreement/message.h"
#include "fuzz/wire_fuzz.h"
#include "tests/repeats.h"

namespace {

std::vector<std::string> ValidMessages() {
  hvd::Request request;
  request.name = "allreduce.layer.weight";
  request.shape = {64, 3, 7, 7};
  request.splits = {1, 2, 3};
  request.group = "group";
  request.group_size = 2;
  hvd::Record record;
  record.sequence = 7;
  record.entries.resize(2);
  record.entries[0].slot = 3;
  record.entries[0].cached = true;
  record.entries[1].request = request;
  record.entries[1].sizes = {4, 5, 6};
  record.names = {"a", "b"};
  record.evicted = {1, 2};
  record.rounds = {3, hvd::kNoRound};
  std::vector<std::string> messages(2);
  hvd::Encode(request, &messages[0]);
  hvd::Encode(record, &messages[1]);
  for (size_t i = 0; i < 2; ++i) {
    for (char type = 1; type <= 10; ++type) messages.push_back(std::string(1, type) + std::string(8, 0) + messages[i]);
  }
  return messages;
}

std::string Mutate(std::string message, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !message.empty(); --changes) {
    const size_t at = random() % message.size();
    switch (random() % 5) {
      case 0:
        message[at] = static_cast<char>(random());
        break;
      case 1:
        message.resize(at);
        break;
      case 2:
        message.insert(at, 1 + random() % 9, static_cast<char>(random()));
        break;
      case 3:  // lengths that become negative, 4 GiB or one off
        for (size_t i = at; i < at + 4 && i < message.size(); ++i) message[i] = static_cast<char>(0xff);
        break;
      default:
        message.erase(at, 1 + random() % 8);
    }
  }
  return message;
}

}  // namespace

TEST_CASE("fuzz: malformed messages are refused or understood, nothing else") {
  const char* wanted = std::getenv("HVD_FUZZ_INPUTS");
  const uint64_t inputs = wanted ? std::strtoull(wanted, nullptr, 10) : hvd::Repeats(1'000'000);
  const std::vector<std::string> corpus = ValidMessages();
  std::mt19937_64 random(20240601);
  uint64_t parsed = 0;
  for (; parsed < inputs; ++parsed) {
    const std::string input = Mutate(corpus[random() % corpus.size()], random);
    hvd::fuzz::ParseEverything(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  CHECK(parsed == inputs);
}
