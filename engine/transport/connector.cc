// SPDX-License-Identifier: Apache-2.0
// TCP implementation: one listening socket, handshakes in progress, dials, and established streams that are not taken
// yet.
#include "transport/connector.h"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <tuple>

#include "transport/handshake.h"
#include "transport/socket.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{1};
constexpr milliseconds kLastBackoff{200};
constexpr milliseconds kKnockAgain{100};
// Delay after accept failed, e.g. because the process has no free descriptors.
constexpr milliseconds kAcceptRetry{100};

auto Tied(const StreamKey& key) { return std::tie(key.peer, key.channel, key.epoch, key.lane, key.stream); }

class TcpConnector final : public Connector {
 public:
  TcpConnector(const ConnectorIdentity& me, Watcher watcher, Fd listener)
      : me_(me), watcher_(std::move(watcher)), listener_(std::move(listener)), port_(LocalPort(listener_.get())) {
    watcher_.add(listener_.get());
  }
  ~TcpConnector() override;

  int port() const override { return port_; }
  void SetPeers(std::vector<std::pair<std::string, int>> peers) override { peers_ = std::move(peers); }
  Stream Take(const StreamKey& key, Status* status) override;
  std::vector<StreamKey> Offered() const override;
  bool Progress() override;
  milliseconds NextWakeup() const override;
  void CloseAll() override;
  bool Deserted(int rank) override;
  uint64_t refused() const override { return refused_; }

 private:
  struct Knock {  // a probe connection that carries no data and only shows whether it is refused
    Fd fd;
    Clock::time_point next;
    int refusals = 0;
  };
  struct Incoming {
    Fd fd;
    Handshake handshake;
    Clock::time_point deadline;
  };
  enum class DialState { kPausing, kShakingHands, kReady, kFailed };
  struct Dial {
    DialState state = DialState::kPausing;
    SocketAddress address;
    Fd fd;
    std::optional<Handshake> handshake;
    Clock::time_point started, deadline, next_attempt;
    milliseconds unanswered{0};
    Clock::time_point answer_due = Clock::time_point::max();  // time by which the peer's host must have answered
    milliseconds backoff = kFirstBackoff;
    std::string problem;  // reason for which the last attempt failed
    Status failure;
    Stream stream;
  };

  bool AcceptNew(Clock::time_point now);
  bool AdvanceIncoming(Clock::time_point now);
  bool AdvanceOne(Incoming* incoming, Clock::time_point now, bool* over);
  void Offer(Incoming* incoming);
  Stream TakeOffered(const StreamKey& key);
  Stream TakeDialed(const StreamKey& key, Status* status);
  Status Begin(const StreamKey& key, Dial* dial, Clock::time_point now);
  bool Advance(const StreamKey& key, Dial* dial, Clock::time_point now);
  static bool IsAnswered(const Dial& dial);
  void Attempt(const StreamKey& key, Dial* dial, Clock::time_point now);
  void ShakeHands(const StreamKey& key, Dial* dial, Clock::time_point now, bool* moved);
  void Pause(Dial* dial, std::string problem, Clock::time_point now);
  void Fail(const StreamKey& key, Dial* dial, Clock::time_point now);
  void Drop(Fd* fd);

  const ConnectorIdentity me_;
  Watcher watcher_;
  Fd listener_;
  int port_;
  bool closed_ = false;
  std::vector<std::pair<std::string, int>> peers_;
  std::list<Incoming> incoming_;
  std::map<StreamKey, Stream> offered_;
  std::map<StreamKey, Dial> dials_;
  std::map<int, Knock> knocks_;
  // Time of the next accept without an event, because no edge announces connections that are already waiting.
  Clock::time_point accept_again_ = Clock::time_point::max();
  std::atomic<uint64_t> refused_{0};
};

TcpConnector::~TcpConnector() {
  if (closed_) return;
  Drop(&listener_);
  for (Incoming& incoming : incoming_) Drop(&incoming.fd);
  for (auto& [key, dial] : dials_) Drop(&dial.fd);
  for (auto& [key, stream] : offered_) {
    Fd fd(stream.fd);
    Drop(&fd);
  }
}

void TcpConnector::CloseAll() {
  closed_ = true;
  listener_.Reset();
  incoming_.clear();
  dials_.clear();
  knocks_.clear();
  for (auto& [key, stream] : offered_) Fd(stream.fd).Reset();
  offered_.clear();
}

void TcpConnector::Drop(Fd* fd) {
  if (!*fd) return;
  watcher_.remove(fd->get());
  fd->Reset();
}

bool TcpConnector::Progress() {
  if (closed_) return false;
  const Clock::time_point now = Clock::now();
  bool moved = AdvanceIncoming(now);  // handle incoming connections first, because that makes room for new ones
  moved |= AcceptNew(now);
  for (auto& [key, dial] : dials_) moved |= Advance(key, &dial, now);
  return moved;
}

milliseconds TcpConnector::NextWakeup() const {
  Clock::time_point next = accept_again_;
  for (const Incoming& incoming : incoming_) next = std::min(next, incoming.deadline);
  for (const auto& [key, dial] : dials_) {
    if (dial.state == DialState::kPausing) next = std::min(next, dial.next_attempt);
    if (dial.state == DialState::kShakingHands) next = std::min({next, dial.deadline, dial.answer_due});
  }
  if (next == Clock::time_point::max()) return milliseconds::max();
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(next - Clock::now()));
}

// ---- accepting ----

bool TcpConnector::AcceptNew(Clock::time_point now) {
  bool moved = false;
  accept_again_ = Clock::time_point::max();
  for (size_t accepted = 0;; ++accepted) {
    if (accepted == limits.handshakes) {  // limits the time that a flood of connections can keep the driver here
      accept_again_ = now;
      break;
    }
    // check first, because a check is ten times cheaper than an accept that finds no connection
    if (!HasInput(listener_.get())) break;
    if (incoming_.size() >= limits.handshakes) {
      // Drop the oldest connection. Handshakes with peers take only a moment, so the oldest is most likely no peer. A
      // peer that is dropped dials again.
      Drop(&incoming_.front().fd);
      incoming_.pop_front();
      ++refused_;
    }
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (WouldBlock(errno)) break;
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      accept_again_ = now + kAcceptRetry;
      break;
    }
    SetNoDelay(fd.get());
    watcher_.add(fd.get());
    Handshake handshake = Handshake::Accept(fd.get(), me_);
    incoming_.push_back({std::move(fd), std::move(handshake), now + limits.handshake});
    bool over = false;
    AdvanceOne(&incoming_.back(), now, &over);
    if (over) incoming_.pop_back();
    moved = true;
  }
  return moved;
}

bool TcpConnector::AdvanceIncoming(Clock::time_point now) {
  bool moved = false;
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    bool over = false;
    moved |= AdvanceOne(&*it, now, &over);
    it = over ? incoming_.erase(it) : std::next(it);
  }
  return moved;
}

// Advance one handshake; set `over` if the connection must be removed from the list.
bool TcpConnector::AdvanceOne(Incoming* incoming, Clock::time_point now, bool* over) {
  const bool moved = incoming->handshake.Step();
  if (incoming->handshake.outcome() == Handshake::Outcome::kInProgress && now < incoming->deadline) return moved;
  *over = true;
  // Accept only higher ranks: this rank dials lower ones itself, and the two kinds of streams must not be confused.
  if (incoming->handshake.outcome() == Handshake::Outcome::kReady && incoming->handshake.key().peer > me_.rank) {
    Offer(incoming);
  } else {
    if (!incoming->handshake.left_at_once()) ++refused_;
    Drop(&incoming->fd);
  }
  return true;
}

// Make the stream available to Take. If the key has one already, replace it: a peer dials again only if it lost the
// earlier connection before it knew that it was accepted.
void TcpConnector::Offer(Incoming* incoming) {
  Stream& place = offered_[incoming->handshake.key()];
  Fd older(place.fd);
  Drop(&older);
  place = incoming->handshake.stream();
  traffic.control_sent.Add(Handshake::kAcceptorBytes);
  traffic.control_received.Add(Handshake::kDialerBytes);
  incoming->fd.Release();
}

std::vector<StreamKey> TcpConnector::Offered() const {
  std::vector<StreamKey> keys;
  keys.reserve(offered_.size());
  for (const auto& [key, stream] : offered_) keys.push_back(key);
  return keys;
}

// ---- taking ----

Stream TcpConnector::Take(const StreamKey& key, Status* status) {
  *status = Status::Ok();
  if (closed_) {
    *status = Status::Failed("this process was forked from a worker; only the worker itself may use its connections");
    return {};
  }
  if (key.peer < 0 || key.peer == me_.rank) {
    *status =
        Status::Invalid("rank " + std::to_string(me_.rank) + " cannot connect to rank " + std::to_string(key.peer));
    return {};
  }
  const Stream stream = key.peer > me_.rank ? TakeOffered(key) : TakeDialed(key, status);
  if (stream.fd >= 0) taken_.fetch_add(1, std::memory_order_relaxed);
  return stream;
}

Stream TcpConnector::TakeOffered(const StreamKey& key) {
  const auto it = offered_.find(key);
  if (it == offered_.end()) return {};
  const Stream stream = it->second;
  offered_.erase(it);
  return stream;
}

Stream TcpConnector::TakeDialed(const StreamKey& key, Status* status) {
  const auto [it, first_call] = dials_.try_emplace(key);
  Dial& dial = it->second;
  if (first_call) {
    const Clock::time_point now = Clock::now();
    *status = Begin(key, &dial, now);
    if (!status->ok()) {
      dials_.erase(it);
      return {};
    }
    Advance(key, &dial, now);
  }
  if (dial.state == DialState::kFailed) *status = dial.failure;
  if (dial.state != DialState::kReady) return {};
  const Stream stream = dial.stream;
  dial.fd.Release();
  dials_.erase(it);
  return stream;
}

// ---- dialing ----

Status TcpConnector::Begin(const StreamKey& key, Dial* dial, Clock::time_point now) {
  if (static_cast<size_t>(key.peer) >= peers_.size()) {
    return Status::Invalid("the address of rank " + std::to_string(key.peer) + " is not known");
  }
  const auto& [host, port] = peers_[static_cast<size_t>(key.peer)];
  if (port <= 0 || !ParseAddress(host, port, &dial->address)) {
    return Status::Invalid("rank " + std::to_string(key.peer) + " announced '" + FormatAddress(host, port) +
                           "', which is not a numeric address and port");
  }
  dial->started = dial->next_attempt = now;
  dial->deadline = now + limits.dial;
  dial->unanswered = limits.unanswered;
  if (dial->unanswered.count() > 0) dial->answer_due = now + dial->unanswered;
  return Status::Ok();
}

bool TcpConnector::Advance(const StreamKey& key, Dial* dial, Clock::time_point now) {
  if (dial->state == DialState::kReady || dial->state == DialState::kFailed) return false;
  bool moved = false;
  if (dial->state == DialState::kPausing && now >= dial->next_attempt && now < dial->deadline) {
    Attempt(key, dial, now);
    moved = true;
  }
  if (dial->state == DialState::kShakingHands) ShakeHands(key, dial, now, &moved);
  const bool pending = dial->state == DialState::kPausing || dial->state == DialState::kShakingHands;
  if (pending && now >= dial->answer_due && IsAnswered(*dial)) dial->answer_due = now + dial->unanswered;
  if (pending && (now >= dial->deadline || now >= dial->answer_due)) {
    Fail(key, dial, now);
    moved = true;
  }
  return moved;
}

// Return true if the peer's kernel holds the connection and acknowledges data. A peer whose driver is slow or frozen is
// still reachable.
bool TcpConnector::IsAnswered(const Dial& dial) {
  return dial.fd && IsConnected(dial.fd.get()) && UnansweredFor(dial.fd.get()) < dial.unanswered;
}

void TcpConnector::Attempt(const StreamKey& key, Dial* dial, Clock::time_point now) {
  Fd fd = NewTcpSocket(dial->address.storage.ss_family);
  if (!fd) return Pause(dial, ErrorText(errno), now);
  if (connect(fd.get(), dial->address.get(), dial->address.size) != 0 && errno != EINPROGRESS) {
    return Pause(dial, ErrorText(errno), now);
  }
  watcher_.add(fd.get());  // add it only after connect, because epoll reports an unconnected socket as hung up
  dial->fd = std::move(fd);
  dial->handshake = Handshake::Dial(dial->fd.get(), me_, key);
  dial->state = DialState::kShakingHands;
}

// Advance the handshake. A single attempt has no time limit, because a new one would lose its position in a full
// backlog.
void TcpConnector::ShakeHands(const StreamKey& key, Dial* dial, Clock::time_point now, bool* moved) {
  if (!dial->handshake->Step()) return;
  *moved = true;
  switch (dial->handshake->outcome()) {
    case Handshake::Outcome::kInProgress:
      if (IsConnectedToItself(dial->fd.get())) Pause(dial, "no process is listening there", now);
      return;
    case Handshake::Outcome::kReady:
      dial->stream = dial->handshake->stream();
      dial->state = DialState::kReady;
      traffic.control_sent.Add(Handshake::kDialerBytes);
      traffic.control_received.Add(Handshake::kAcceptorBytes);
      return;
    case Handshake::Outcome::kRefused:
      dial->problem = dial->handshake->problem();
      return Fail(key, dial, now);
    case Handshake::Outcome::kUnproven:
      ++refused_;
      [[fallthrough]];
    case Handshake::Outcome::kBroken:
      return Pause(dial, dial->handshake->problem(), now);
  }
}

void TcpConnector::Pause(Dial* dial, std::string problem, Clock::time_point now) {
  Drop(&dial->fd);
  dial->handshake.reset();
  dial->state = DialState::kPausing;
  dial->problem = std::move(problem);
  dial->next_attempt = std::min(now + dial->backoff, dial->deadline);
  dial->backoff = std::min(2 * dial->backoff, kLastBackoff);
}

void TcpConnector::Fail(const StreamKey& key, Dial* dial, Clock::time_point now) {
  Drop(&dial->fd);
  dial->handshake.reset();
  dial->state = DialState::kFailed;
  if (dial->problem.empty()) dial->problem = "no answer";
  const auto& [host, port] = peers_[static_cast<size_t>(key.peer)];
  const auto waited = std::chrono::duration_cast<milliseconds>(now - dial->started).count();
  dial->failure =
      Status::Failed("rank " + std::to_string(me_.rank) + " could not connect to rank " + std::to_string(key.peer) +
                     " at " + FormatAddress(host, port) + " (tried for " + std::to_string(waited / 1000) + "." +
                     std::to_string(waited % 1000 / 100) + " s): " + dial->problem);
}

bool TcpConnector::Deserted(int rank) {
  constexpr int kEnough = 2;
  const Clock::time_point now = Clock::now();
  Knock& knock = knocks_[rank];
  const auto& [host, port] = peers_[static_cast<size_t>(rank)];
  SocketAddress address;
  if (closed_ || now < knock.next || !ParseAddress(host, port, &address)) return knock.refusals >= kEnough;
  int error = 0;
  if (knock.fd) {
    if (!IsWritable(knock.fd.get())) return false;
    socklen_t size = sizeof error;
    getsockopt(knock.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  } else {
    knock.fd = NewTcpSocket(address.storage.ss_family);
    if (!knock.fd) return false;
    error = connect(knock.fd.get(), address.get(), address.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) return false;
  }
  if (error == 0 && IsConnectedToItself(knock.fd.get())) error = ECONNREFUSED;
  knock.fd.Reset();
  knock.next = now + kKnockAgain;
  knock.refusals = error == ECONNREFUSED ? knock.refusals + 1 : 0;
  return knock.refusals >= kEnough;
}

Fd BindAndListen(const std::string& address, Status* status) {
  SocketAddress local;
  if (!ParseAddress(address, 0, &local)) {
    *status = Status::Invalid("'" + address + "' is not a numeric IPv4 or IPv6 address to listen on");
    return {};
  }
  Fd fd = NewTcpSocket(local.storage.ss_family);
  const int off = 0;  // makes "::" accept IPv4 too, whatever the system's default is
  if (fd && local.storage.ss_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (!fd || bind(fd.get(), local.get(), local.size) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    *status = Status::Failed("cannot listen on " + address + ": " + ErrorText(errno));
    return {};
  }
  return fd;
}

}  // namespace

bool StreamKey::operator<(const StreamKey& other) const { return Tied(*this) < Tied(other); }
bool StreamKey::operator==(const StreamKey& other) const { return Tied(*this) == Tied(other); }

std::unique_ptr<Connector> Connector::Listen(const ConnectorIdentity& me, const std::string& address, Watcher watcher,
                                             Status* status) {
  *status = Status::Ok();
  if (me.secret.empty()) {
    *status = Status::Invalid("no secret was given: connections between ranks would be open to everyone");
  } else if (me.world_id.size() > 32) {
    *status = Status::Invalid("the world id is longer than 32 bytes");
  }
  if (!status->ok()) return nullptr;
  Fd listener = BindAndListen(address, status);
  if (!listener) return nullptr;
  return std::make_unique<TcpConnector>(me, std::move(watcher), std::move(listener));
}

}  // namespace hvd
