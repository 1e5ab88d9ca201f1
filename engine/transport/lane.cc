// SPDX-License-Identifier: Apache-2.0
#include "transport/lane.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/socket.h"

namespace hvd {
namespace {

constexpr size_t kCacheLine = 64;
// Limit for one system call, so that sending and receiving alternate on a full-duplex link.
constexpr size_t kBurst = size_t{256} << 10;

}  // namespace

Lane::Lane(const LaneOptions& options, std::vector<LaneHead*> heads, std::vector<StreamKey> keys, Connector* connector,
           std::function<void()> changed)
    : options_(options),
      slots_count_(static_cast<size_t>(options.slots)),
      heads_(std::move(heads)),
      wires_(static_cast<size_t>(options.members)),
      counted_(static_cast<size_t>(options.members), 0),
      connector_(connector),
      traffic_(connector ? &connector->traffic : nullptr),
      changed_(std::move(changed)) {
  set_chunk_bytes(options.slot_bytes);
  for (int j = 0; j < options_.members; ++j) {
    if (j == options_.me) continue;
    if (heads_[j]) {
      local_.push_back(j);
      continue;
    }
    remote_.push_back(j);
    wires_[j] = std::make_unique<Wire>();
    wires_[j]->key = keys[j];
    wires_[j]->fds.assign(options_.streams, -1);
    wires_[j]->queues.resize(options_.streams);
  }
  if (LaneHead* own = heads_[options_.me]) {
    slots_ = own->slots;
  } else {
    private_slots_.reset(new std::byte[options_.slot_bytes * slots_count_]);
    slots_ = private_slots_.get();
  }
}

Lane::~Lane() { CloseDescriptors(); }

void Lane::CloseDescriptors() {
  for (int j : remote_) {
    for (int& fd : wires_[j]->fds) {
      if (fd >= 0) close(fd);
      fd = -1;
    }
  }
}

void Lane::set_chunk_bytes(size_t bytes) {
  if (bytes == chunk_bytes_) return;
  chunk_bytes_ = bytes;
  const size_t members = static_cast<size_t>(options_.members);
  slot_bytes_ = options_.apart ? InPackets(bytes) : bytes;
  piece_bytes_ = slot_bytes_ / members / kCacheLine * kCacheLine;
  if (options_.apart) piece_bytes_ = std::min(piece_bytes_, InPackets(bytes / members));
  moved_at_ = posted_;
}

bool Lane::CanPost(uint64_t ahead) {
  const uint64_t next = posted_ + ahead;
  const uint64_t free = std::max(moved_at_, next < slots_count_ ? 0 : next - slots_count_ + 1);
  if (free == 0) return true;
  const uint64_t reused = free - 1;  // last index whose bytes the next post may overwrite
  if (local_released_ <= reused && !local_.empty()) {
    uint64_t least = UINT64_MAX;
    for (int j : local_) least = std::min(least, heads_[j]->released.load(std::memory_order_acquire));
    local_released_ = least;
    if (least <= reused) return false;
  }
  for (int j : remote_) {
    for (size_t stream = 0; stream < wires_[j]->queues.size(); ++stream) {
      auto& queue = wires_[j]->queues[stream];
      if (!queue.empty() && queue.front().index <= reused) Send(j, stream);
      if (!queue.empty() && queue.front().index <= reused) return false;
    }
  }
  return true;
}

void Lane::PostScatter(const size_t* lengths) {
  const std::byte* slot = Slot();
  for (int j : remote_) Queue(j, slot + static_cast<size_t>(j) * piece_bytes_, lengths[j]);
  Announce(1);
}

void Lane::PostMulticast(size_t length) {
  const std::byte* slot = Slot();
  for (int j : remote_) Queue(j, slot, length);
  Announce(1);
}

void Lane::PostScatterFrom(const std::byte* const* pieces, const size_t* lengths) {
  for (int j : remote_) Queue(j, pieces[j], lengths[j]);
  Announce(1);
}

void Lane::PostMulticastFrom(const std::byte* data, size_t length) {
  for (int j : remote_) Queue(j, data, length);
  Announce(1);
}

void Lane::PostTo(int member, const std::byte* data, size_t length) {
  Queue(member, data, length);
  Announce(1);
}

void Lane::PostNothing(uint64_t count) {
  if (count) Announce(count);
}

void Lane::Announce(uint64_t count) {
  const uint64_t index = posted_;
  posted_ += count;
  if (LaneHead* own = heads_[options_.me]) {
    own->posted.store(posted_, std::memory_order_release);
    changed_();
  }
  if (outstanding_ == 0) return;
  for (int j : remote_) Send(j, index % options_.streams);
}

void Lane::Queue(int member, const std::byte* data, size_t length) {
  if (length == 0) return;
  wires_[member]->queues[posted_ % options_.streams].push_back({data, length, posted_});
  ++outstanding_;
}

int Lane::StreamFd(int member, size_t stream) {
  Wire& wire = *wires_[member];
  if (wire.fds[stream] < 0 && status_.ok()) {
    StreamKey key = wire.key;
    key.stream = static_cast<uint16_t>(stream);
    Status why;
    wire.fds[stream] = connector_->Take(key, &why).fd;
    if (!why.ok()) Break(member, why.text);
  }
  return wire.fds[stream];
}

bool Lane::Send(int member, size_t stream) {
  auto& queue = wires_[member]->queues[stream];
  if (queue.empty()) return false;
  const int fd = StreamFd(member, stream);
  bool moved = false;
  while (fd >= 0 && !queue.empty()) {
    Item& item = queue.front();
    ssize_t sent = send(fd, item.data, std::min(item.left, kBurst), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) Break(member, std::strerror(errno));
      break;
    }
    moved = true;
    traffic_->data_sent.Add(static_cast<uint64_t>(sent));
    item.data += sent;
    item.left -= static_cast<size_t>(sent);
    if (item.left) continue;
    queue.pop_front();
    --outstanding_;
  }
  return moved;
}

bool Lane::Pump() {
  if (outstanding_ == 0) return false;
  bool moved = false;
  for (int j : remote_) {
    for (size_t stream = 0; stream < wires_[j]->queues.size(); ++stream) moved |= Send(j, stream);
  }
  return moved;
}

bool Lane::HaveLeft(uint64_t before) const {
  if (outstanding_ == 0) return true;
  for (int j : remote_) {
    for (const auto& queue : wires_[j]->queues) {
      if (!queue.empty() && queue.front().index < before) return false;
    }
  }
  return true;
}

void Lane::DropUnsent() {
  for (int j : remote_) {
    for (auto& queue : wires_[j]->queues) queue.clear();
  }
  outstanding_ = 0;
}

const std::byte* Lane::Fetch(int member, Layout layout, size_t length, std::byte* direct) {
  static const std::byte kEmpty{};
  if (length == 0) return &kEmpty;
  if (LaneHead* head = heads_[member]) {
    if (head->posted.load(std::memory_order_acquire) <= released_) return nullptr;
    CountFetched(member, length);
    const std::byte* slot = head->slots + (released_ % slots_count_) * slot_bytes_;
    return layout == Layout::kScatter ? slot + static_cast<size_t>(options_.me) * piece_bytes_ : slot;
  }
  Wire& wire = *wires_[member];
  if (wire.complete > released_) return wire.target;
  const int fd = StreamFd(member, released_ % options_.streams);
  if (fd < 0) return nullptr;
  if (wire.got == 0) {
    // Grow the buffer only as needed, because with many members a piece is a small part of a slot.
    if (!direct && wire.scratch_bytes < length) {
      wire.scratch_bytes = std::min(std::max(length, 2 * wire.scratch_bytes), std::max(length, options_.slot_bytes));
      wire.scratch.reset(new std::byte[wire.scratch_bytes]);
    }
    wire.target = direct ? direct : wire.scratch.get();
  }
  while (wire.got < length) {
    ssize_t got = recv(fd, wire.target + wire.got, std::min(length - wire.got, kBurst), MSG_DONTWAIT);
    if (got == 0) {
      Break(member, "connection closed");
      return nullptr;
    }
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) Break(member, std::strerror(errno));
      return nullptr;
    }
    traffic_->data_received.Add(static_cast<uint64_t>(got));
    wire.got += static_cast<size_t>(got);
  }
  wire.got = 0;
  wire.complete = released_ + 1;
  return wire.target;
}

// Count a piece at the first call for it only, because a state machine that waits for several members fetches each
// piece repeatedly.
void Lane::CountFetched(int member, size_t length) {
  uint64_t& counted = counted_[static_cast<size_t>(member)];
  if (counted > released_) return;
  counted = released_ + 1;
  CountMemory(length, 0);
}

void Lane::CountMemory(uint64_t read, uint64_t written) {
  if (!traffic_) return;
  traffic_->memory_read.Add(read);
  if (written) traffic_->memory_written.Add(written);
}

bool Lane::AllPosted() const {
  return std::all_of(local_.begin(), local_.end(),
                     [this](int j) { return heads_[j]->posted.load(std::memory_order_acquire) > released_; });
}

bool Lane::AllReleased() const {
  return std::all_of(local_.begin(), local_.end(),
                     [this](int j) { return heads_[j]->released.load(std::memory_order_acquire) >= posted_; });
}

void Lane::Release(uint64_t count) {
  released_ += count;
  if (LaneHead* own = heads_[options_.me]) {
    own->released.store(released_, std::memory_order_release);
    changed_();
  }
}

// Measure the time from the first call that finds data retransmitted. The age of the last acknowledgement is not
// enough, because on a connection that was idle it may be high although nothing is wrong.
void Lane::LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit) {
  if (limit.count() == 0) return;
  for (const int member : remote_) {
    Wire& wire = *wires_[static_cast<size_t>(member)];
    wire.unanswered_since.resize(wire.fds.size());
    for (size_t stream = 0; stream < wire.fds.size(); ++stream) {
      auto& since = wire.unanswered_since[stream];
      const auto silence = wire.fds[stream] < 0 ? limit.zero() : UnansweredFor(wire.fds[stream]);
      if (silence == limit.zero()) {
        since = {};
      } else if (since == std::chrono::steady_clock::time_point()) {
        since = now;
      } else if (silence >= limit && now - since >= limit) {
        Break(member, "its host has acknowledged nothing for " +
                          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) + " s");
      }
    }
  }
}

void Lane::Break(int member, const std::string& why) {
  if (!status_.ok()) return;
  status_ = Status::Failed(why);
  lost_member_ = member;
}

}  // namespace hvd
