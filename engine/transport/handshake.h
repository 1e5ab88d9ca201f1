// SPDX-License-Identifier: Apache-2.0
// Mutual proof of the job's secret over a fresh stream socket (TCP or unix), as a machine that never blocks.
//
//   dialer   -> acceptor   magic with version, nonce D
//   acceptor -> dialer     nonce A, MAC("acceptor", magic, D, A)
//   dialer   -> acceptor   HELLO, MAC("dialer", magic, D, A, HELLO)
//   acceptor -> dialer     verdict byte, MAC("ready", magic, D, A, HELLO) or MAC("refused", magic, D, A, verdict)
//
// Every message has a fixed size; HELLO is looked at only after its MAC. The nonces make a recorded dialogue useless,
// the labels a reflected one. No byte beyond the handshake is read: what follows belongs to whoever takes the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/connector.h"
#include "transport/sha256.h"

namespace hvd {

class Handshake {
 public:
  enum class Outcome {
    kInProgress,
    kReady,     // both ends have proved that they know the secret, and they want the same conversation
    kRefused,   // the peer knows the secret but belongs elsewhere: trying again will not help
    kUnproven,  // the peer spoke garbage or does not know the secret
    kBroken,    // the connection was closed or failed
  };
  static constexpr uint8_t kProtocolVersion = 1;
  static constexpr size_t kMagicSize = 8, kNonceSize = 32, kMacSize = 32, kHelloSize = 56;
  static constexpr size_t kGreetingSize = kMagicSize + kNonceSize;
  static constexpr size_t kChallengeSize = kNonceSize + kMacSize;
  static constexpr size_t kProofSize = kHelloSize + kMacSize;
  static constexpr size_t kVerdictSize = 1 + kMacSize;
  // What each end has sent when both are kReady.
  static constexpr size_t kDialerBytes = kGreetingSize + kProofSize;
  static constexpr size_t kAcceptorBytes = kChallengeSize + kVerdictSize;

  // `fd` is non-blocking and stays the caller's; `me` must outlive the handshake. A TCP `fd` may still be connecting.
  // `version` is a parameter so that tests can play an older or newer peer.
  static Handshake Dial(int fd, const ConnectorIdentity& me, const StreamKey& key, uint8_t version = kProtocolVersion);
  static Handshake Accept(int fd, const ConnectorIdentity& me, uint8_t version = kProtocolVersion);

  // Does what can be done now; true if anything moved. Call again when `fd` becomes readable or writable.
  bool Step();

  Outcome outcome() const { return outcome_; }
  const StreamKey& key() const { return key_; }  // the acceptor knows it once kReady; `peer` is the other end
  Stream stream() const;                         // once kReady
  // The peer closed the connection without a word: it only wanted to know whether somebody listens.
  bool left_at_once() const {
    return stage_ == Stage::kAwaitGreeting && received_ == 0 && outcome_ == Outcome::kBroken;
  }
  const std::string& problem() const { return problem_; }  // why not kReady, as the end of a sentence

 private:
  enum class Stage { kAwaitGreeting, kAwaitChallenge, kAwaitProof, kAwaitVerdict, kLastWords, kDrain };
  enum Verdict : char { kWelcome = 0, kOtherVersion = 1, kOtherWorld = 2, kOtherGeneration = 3, kOtherRank = 4 };

  Handshake(int fd, const ConnectorIdentity& me, uint8_t version, Stage first);
  static size_t SizeOfMessage(Stage stage);
  bool Flush(bool* moved);
  bool Read(bool* moved);
  void OnMessage(std::string_view message);
  void OnGreeting(std::string_view message);
  void OnChallenge(std::string_view message);
  void OnProof(std::string_view message);
  void OnVerdict(std::string_view message);
  void Drain();
  Verdict Judge(std::string_view hello);
  void Refuse(Verdict verdict);
  void Finish(Outcome outcome, std::string problem);
  std::string OwnMagic() const;
  std::string Explain(char verdict) const;
  bool DrawNonce(std::string* nonce);
  std::string EncodeHello() const;
  Digest Mac(std::string_view label, std::string_view rest = {}) const;

  int fd_;
  const ConnectorIdentity* me_;
  uint8_t version_;
  bool dialer_ = false;
  Stage stage_;
  Outcome outcome_ = Outcome::kInProgress;
  StreamKey key_;
  std::string problem_;
  std::string magic_, dialer_nonce_, acceptor_nonce_, hello_;
  std::string out_;
  size_t sent_ = 0;
  std::array<char, kProofSize> in_ = {};
  size_t received_ = 0;
  size_t drained_ = 0;
};

}  // namespace hvd
