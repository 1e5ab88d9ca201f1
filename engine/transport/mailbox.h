// SPDX-License-Identifier: Apache-2.0
// Control messages between ranks, through the inbox in a local peer's arena or as authenticated frames on a TCP link
// that is opened on first use. Messages between two ranks stay in order; no call blocks and no message is dropped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/connector.h"
#include "transport/frame.h"
#include "transport/neighbours.h"

namespace hvd {

class Mailbox {
 public:
  using Handler = std::function<void(int from, std::string_view message)>;

  // `own` may be null if this rank shares no memory.
  Mailbox(int rank, Inbox* own, Neighbours* neighbours, Connector* connector);
  ~Mailbox();

  // Prepare for control messages with `rank`: open a TCP link if one is needed. With `vital` the peer expects the link
  // too, so that a link that does not come up is a sign that the peer is lost.
  void Expect(int rank, bool vital);
  // Send a message to `rank`. `open` is tensor data at its end, which is not authenticated (see frame.h). `data` is the
  // number of tensor bytes in `message`, for the byte counters.
  void Send(int rank, std::string_view message, std::string_view open = {}, size_t data = 0);
  // Deliver messages that have arrived; return true if there were any. Set `eager` if the caller waits for a message:
  // if there are only a few links, this reads all of them before the poller reports an event.
  bool Receive(const Handler& handler, bool eager);
  // Count `bytes` of the message being handled as tensor data; call this from the handler. Call it before an operation
  // finishes, because the caller of that operation may read the counters at once.
  void CountAsData(size_t bytes) {
    data_at_hand_ += bytes;
    if (data_counter_) data_counter_->Add(bytes);
  }
  // Send queued messages; return true if any bytes moved.
  bool Flush();
  // Wake local peers that sleep and have unread messages from this rank. Send does not wake them, because ranks that
  // run in step find their messages without it, and a needless wake-up costs more than the message.
  void RingUnread();
  bool unrung() const { return unrung_; }  // returns true if RingUnread may have a peer to wake
  // Return true if a peer's inbox is full. The driver must then poll, because no event announces free space.
  bool congested() const { return waiting_cells_ > 0; }
  bool AllSent() const;
  // Handle an event on descriptor `fd`.
  void OnEvent(int fd);
  void LookEverywhere();  // makes the next Receive read all links, not only those with an event
  // Discard messages that wait for space in the inbox of `rank` or for a connection to it, so that AllSent does not
  // wait for them.
  void DropUnsent(int rank);
  // returns true if data may have arrived that the poller will not report again
  bool unread() const { return unread_; }
  bool has_links() const { return has_links_.load(std::memory_order_relaxed); }  // any thread may call this
  // Return the number of messages sent so far. Any thread may call this.
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  std::vector<int> LinkedRanks() const;
  // Return the TCP links that are up or vital, with the time since data last arrived on them.
  struct Sign {
    int rank;
    bool up;
    std::chrono::steady_clock::duration age;
  };
  std::vector<Sign> SignsOfLife() const;

  // Return the links that broke since the last call, as rank and reason.
  std::vector<std::pair<int, std::string>> TakeBroken();
  void CloseDescriptors();

 private:
  struct Cell {
    std::string bytes;
    bool more;
  };
  struct Outbox {  // messages to a local peer's inbox
    Neighbour* neighbour;
    std::deque<Cell> waiting;
    uint64_t last_cell = 0;  // index of the last cell that this rank wrote
    bool unrung = false;
  };
  struct Unsent {
    std::string message, open;
    size_t data;
  };
  struct Link {
    int fd = -1;
    bool broken = false, readable = true, vital = false;
    // Error of a failed send; the link breaks only after the data that the peer sent earlier has been read.
    std::string refused;
    std::chrono::steady_clock::time_point heard;
    std::deque<Unsent> waiting;  // messages that wait for the connection
    std::unique_ptr<FrameWriter> writer;
    std::unique_ptr<FrameReader> reader;
  };

  size_t Handle(const Handler& handler, Tally* data_counter, int from, std::string_view message);
  Tally* memory_counter() { return connector_ ? &connector_->traffic.memory_read : nullptr; }
  void SendByInbox(Outbox& outbox, std::string_view message);
  bool FlushOutbox(Outbox& outbox);
  Link& LinkTo(int rank);
  bool Establish(int rank, Link& link);
  void Write(Link& link);
  bool ReceiveByInbox(const Handler& handler);
  bool ReceiveByLink(int rank, Link& link, const Handler& handler);
  void Break(int rank, Link& link, const std::string& why);

  int rank_;
  Inbox* own_;
  Connector* connector_;
  std::map<int, Outbox> outboxes_;
  std::map<int, Link> links_;
  std::atomic<bool> has_links_{false};
  std::atomic<uint64_t> sent_{0};
  std::map<uint32_t, std::string> partial_;  // incomplete messages, by writer
  std::vector<std::pair<int, std::string>> broken_;
  size_t waiting_cells_ = 0;
  size_t data_at_hand_ = 0;        // tensor bytes of the message being handled
  Tally* data_counter_ = nullptr;  // counter for these tensor bytes; null outside a handler
  bool unrung_ = false;            // true if any outbox is unrung
  bool unread_ = false;            // true if any link may be readable
};

}  // namespace hvd
