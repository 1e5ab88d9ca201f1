// SPDX-License-Identifier: Apache-2.0
// Both roles of the handshake, dialer and acceptor.
#include "transport/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/wire.h"
#include "transport/socket.h"

namespace hvd {
namespace {

constexpr std::string_view kName = "HVDLINK";  // the eighth byte of the magic is the version
constexpr size_t kWorldIdSize = 32;
constexpr size_t kMostToDrain = 4096;

std::string PaddedWorldId(const ConnectorIdentity& me) {
  std::string padded = me.world_id.substr(0, kWorldIdSize);
  padded.resize(kWorldIdSize, '\0');
  return padded;
}

}  // namespace

Handshake::Handshake(int fd, const ConnectorIdentity& me, uint8_t version, Stage first)
    : fd_(fd), me_(&me), version_(version), stage_(first) {}

Handshake Handshake::Dial(int fd, const ConnectorIdentity& me, const StreamKey& key, uint8_t version) {
  Handshake dial(fd, me, version, Stage::kAwaitChallenge);
  dial.dialer_ = true;
  dial.key_ = key;
  dial.magic_ = dial.OwnMagic();
  if (dial.DrawNonce(&dial.dialer_nonce_)) dial.out_ = dial.magic_ + dial.dialer_nonce_;
  return dial;
}

Handshake Handshake::Accept(int fd, const ConnectorIdentity& me, uint8_t version) {
  return Handshake(fd, me, version, Stage::kAwaitGreeting);
}

bool Handshake::Step() {
  bool moved = false;
  while (outcome_ == Outcome::kInProgress) {
    if (!Flush(&moved)) break;
    if (stage_ == Stage::kLastWords) {
      Finish(Outcome::kReady, "");
    } else if (stage_ == Stage::kDrain) {
      Drain();
      break;
    } else {
      if (!Read(&moved)) break;
      OnMessage({in_.data(), std::exchange(received_, 0)});
    }
  }
  return moved || outcome_ != Outcome::kInProgress;
}

// Send pending bytes. A TCP socket that is still connecting gives EAGAIN and one that failed to connect gives its
// error, so the connection state needs no separate check.
bool Handshake::Flush(bool* moved) {
  while (sent_ < out_.size()) {
    ssize_t n = SendSome(fd_, out_.data() + sent_, out_.size() - sent_);
    if (n < 0) {
      if (!WouldBlock(errno)) Finish(Outcome::kBroken, ErrorText(errno));
      return false;
    }
    sent_ += static_cast<size_t>(n);
    *moved = true;
  }
  out_.clear();
  sent_ = 0;
  return true;
}

bool Handshake::Read(bool* moved) {
  const size_t size = SizeOfMessage(stage_);
  while (received_ < size) {
    ssize_t n = ReceiveSome(fd_, in_.data() + received_, size - received_);
    if (n < 0 && WouldBlock(errno)) return false;
    if (n <= 0) {
      Finish(Outcome::kBroken, n == 0 ? "the peer closed the connection during the handshake" : ErrorText(errno));
      return false;
    }
    received_ += static_cast<size_t>(n);
    *moved = true;
  }
  return true;
}

size_t Handshake::SizeOfMessage(Stage stage) {
  switch (stage) {
    case Stage::kAwaitGreeting:
      return kGreetingSize;
    case Stage::kAwaitChallenge:
      return kChallengeSize;
    case Stage::kAwaitProof:
      return kProofSize;
    case Stage::kAwaitVerdict:
      return kVerdictSize;
    default:
      return 0;
  }
}

void Handshake::OnMessage(std::string_view message) {
  switch (stage_) {
    case Stage::kAwaitGreeting:
      return OnGreeting(message);
    case Stage::kAwaitChallenge:
      return OnChallenge(message);
    case Stage::kAwaitProof:
      return OnProof(message);
    case Stage::kAwaitVerdict:
      return OnVerdict(message);
    default:
      return;
  }
}

// The greeting and the challenge have a fixed format in all versions, so that peers of different versions can refuse
// each other properly.
void Handshake::OnGreeting(std::string_view message) {
  magic_ = message.substr(0, kMagicSize);
  dialer_nonce_ = message.substr(kMagicSize);
  if (magic_.compare(0, kName.size(), kName) != 0) {
    return Finish(Outcome::kUnproven, "the peer does not speak this protocol");
  }
  if (!DrawNonce(&acceptor_nonce_)) return;
  out_ = acceptor_nonce_;
  out_ += BytesOf(Mac("acceptor"));
  stage_ = Stage::kAwaitProof;
  if (magic_ != OwnMagic()) Refuse(kOtherVersion);
}

void Handshake::OnChallenge(std::string_view message) {
  acceptor_nonce_ = message.substr(0, kNonceSize);
  if (!EqualInConstantTime(BytesOf(Mac("acceptor")), message.substr(kNonceSize))) {
    return Finish(Outcome::kUnproven, "the peer does not know this job's secret");
  }
  hello_ = EncodeHello();
  out_ = hello_;
  out_ += BytesOf(Mac("dialer", hello_));
  stage_ = Stage::kAwaitVerdict;
}

void Handshake::OnProof(std::string_view message) {
  hello_ = message.substr(0, kHelloSize);
  if (!EqualInConstantTime(BytesOf(Mac("dialer", hello_)), message.substr(kHelloSize))) {
    return Finish(Outcome::kUnproven, "the peer does not know this job's secret");
  }
  const Verdict verdict = Judge(hello_);
  if (verdict != kWelcome) return Refuse(verdict);
  out_.assign(1, kWelcome);
  out_ += BytesOf(Mac("ready", hello_));
  stage_ = Stage::kLastWords;
}

void Handshake::OnVerdict(std::string_view message) {
  const char verdict = message[0];
  const Digest mac = verdict == kWelcome ? Mac("ready", hello_) : Mac("refused", message.substr(0, 1));
  if (!EqualInConstantTime(BytesOf(mac), message.substr(1))) {
    return Finish(Outcome::kUnproven, "the peer's answer is not authentic");
  }
  if (verdict != kWelcome) return Finish(Outcome::kRefused, Explain(verdict));
  Finish(Outcome::kReady, "");
}

Handshake::Verdict Handshake::Judge(std::string_view hello) {
  std::string_view world = hello.substr(0, kWorldIdSize);
  hello.remove_prefix(kWorldIdSize);
  uint32_t generation = 0;
  int32_t to = -1;
  wire::Get(&hello, &generation);
  wire::Get(&hello, &key_.peer);
  wire::Get(&hello, &to);
  wire::Get(&hello, &key_.channel);
  wire::Get(&hello, &key_.epoch);
  wire::Get(&hello, &key_.lane);
  wire::Get(&hello, &key_.stream);
  if (world != PaddedWorldId(*me_)) return kOtherWorld;
  if (generation != me_->generation) return kOtherGeneration;
  if (to != me_->rank || key_.peer < 0) return kOtherRank;
  return kWelcome;
}

std::string Handshake::EncodeHello() const {
  std::string hello = PaddedWorldId(*me_);
  wire::Put<uint32_t>(&hello, me_->generation);
  wire::Put<int32_t>(&hello, me_->rank);
  wire::Put<int32_t>(&hello, key_.peer);
  wire::Put<uint32_t>(&hello, key_.channel);
  wire::Put<uint32_t>(&hello, key_.epoch);
  wire::Put<uint16_t>(&hello, key_.lane);
  wire::Put<uint16_t>(&hello, key_.stream);
  return hello;
}

void Handshake::Refuse(Verdict verdict) {
  problem_ = Explain(verdict);
  out_ += verdict;
  out_ += BytesOf(Mac("refused", out_.substr(out_.size() - 1)));
  stage_ = Stage::kDrain;
}

// Wait for the peer to close the connection; the caller limits the duration of the whole handshake. Closing a socket
// with unread bytes resets the connection, and the reset could overtake the verdict.
void Handshake::Drain() {
  ssize_t n;
  while ((n = ReceiveSome(fd_, in_.data(), in_.size())) > 0) {
    drained_ += static_cast<size_t>(n);
    if (drained_ > kMostToDrain) break;
  }
  if (n >= 0 || !WouldBlock(errno)) Finish(Outcome::kRefused, std::move(problem_));
}

void Handshake::Finish(Outcome outcome, std::string problem) {
  outcome_ = outcome;
  problem_ = std::move(problem);
}

std::string Handshake::OwnMagic() const { return std::string(kName) + static_cast<char>(version_); }

std::string Handshake::Explain(char verdict) const {
  switch (verdict) {
    case kOtherVersion:
      return "the ranks speak different protocol versions; all must run the same Khorovod release";
    case kOtherWorld:
      return "the ranks belong to different jobs (world ids differ)";
    case kOtherGeneration:
      return "the ranks are in different generations; one has re-initialised without the other";
    case kOtherRank:
      return "the connection reached a rank other than the one it was meant for";
    default:
      return "the peer refused for a reason that this version does not know";
  }
}

bool Handshake::DrawNonce(std::string* nonce) {
  nonce->resize(kNonceSize);
  ssize_t n;
  // one call suffices, because getrandom returns requests of up to 256 bytes in full
  do n = getrandom(nonce->data(), kNonceSize, 0);
  while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(kNonceSize)) return true;
  Finish(Outcome::kBroken, "the kernel provided no random numbers: " + ErrorText(errno));
  return false;
}

Digest Handshake::Mac(std::string_view label, std::string_view rest) const {
  HmacSha256 mac(me_->secret);
  // the input is unambiguous, because no label is a prefix of another and the parts that follow have fixed sizes
  mac.Update(label);
  mac.Update(magic_);
  mac.Update(dialer_nonce_);
  mac.Update(acceptor_nonce_);
  mac.Update(rest);
  return mac.Finish();
}

Stream Handshake::stream() const {
  HmacSha256 mac(me_->secret);
  mac.Update("keys");
  mac.Update(dialer_nonce_);
  mac.Update(acceptor_nonce_);
  const Digest digest = mac.Finish();
  uint64_t keys[4];
  std::memcpy(keys, digest.data(), sizeof keys);
  Stream stream;
  stream.fd = fd_;
  std::copy_n(keys + (dialer_ ? 0 : 2), 2, stream.send_key);
  std::copy_n(keys + (dialer_ ? 2 : 0), 2, stream.recv_key);
  return stream;
}

}  // namespace hvd
