// SPDX-License-Identifier: Apache-2.0
#include "transport/life_line.h"

#include <cerrno>
#include <cstdint>

#include "base/wire.h"

namespace hvd {
namespace {

constexpr char kFarewell = 'B', kLastWords = 'L';
// Limit for the text of the reason; an otherwise empty socket takes that much in one piece.
constexpr size_t kMostWords = 2048;
constexpr size_t kMostBytes = kMostWords + 64;

}  // namespace

void LifeLine::SayFarewell() { SendSome(fd(), &kFarewell, 1); }

void LifeLine::SayLastWords(const LastWords& words) {
  std::string message(1, kLastWords);
  wire::Put<int32_t>(&message, words.lost_rank);
  wire::PutString(&message, std::string_view(words.why).substr(0, kMostWords));
  SendSome(fd(), message.data(), message.size());
}

void LifeLine::Read() {
  if (!fd_ || ended_) return;
  char bytes[512];
  ssize_t got;
  while ((got = ReceiveSome(fd(), bytes, sizeof bytes)) > 0) {
    unread_.append(bytes, static_cast<size_t>(got));
    while (TakeMessage()) continue;
    if (unread_.size() > kMostBytes) break;  // treat malformed input like a broken connection
  }
  ended_ = got >= 0 || !WouldBlock(errno);
}

bool LifeLine::TakeMessage() {
  if (unread_.empty()) return false;
  std::string_view rest = unread_;
  rest.remove_prefix(1);
  if (unread_[0] == kFarewell) {
    farewell_ = true;
  } else {
    LastWords words;
    if (!wire::Get(&rest, &words.lost_rank) || !wire::GetString(&rest, &words.why)) return false;
    if (!last_words_) last_words_ = std::move(words);
  }
  unread_ = std::string(rest);
  return true;
}

}  // namespace hvd
