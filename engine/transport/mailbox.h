// SPDX-License-Identifier: Apache-2.0
// Control messages between ranks: through the inbox in a neighbour's arena, or as authenticated frames on a TCP
// link that is made when first needed. Order is kept between each pair; nothing blocks and nothing is dropped.
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

  // `own` may be null when no memory is shared with anybody.
  Mailbox(int rank, Inbox* own, Neighbours* neighbours, Connector* connector);
  ~Mailbox();

  // Tells that control messages with `rank` will be exchanged, so that a TCP link is made where one is needed. `vital`:
  // the other end expects it too, so that not even coming into being is a sign that it is lost.
  void Expect(int rank, bool vital);
  // `open`: tensor data at its end, which is not authenticated (see frame.h). `data`: how many bytes of `message` are
  // tensor data too, for the byte counters.
  void Send(int rank, std::string_view message, std::string_view open = {}, size_t data = 0);
  // Delivers what has arrived; true if anything came. `eager`: somebody waits for it; where links are few, they are
  // looked at before the poller speaks of them.
  bool Receive(const Handler& handler, bool eager);
  // For the handler: counts `bytes` of the message that it is handling as tensor data. Call it before an operation
  // finishes, because the caller of that operation may read the counters at once.
  void CountAsData(size_t bytes) {
    data_at_hand_ += bytes;
    if (data_counter_) data_counter_->Add(bytes);
  }
  // Pushes what could not be sent at once; true if anything moved.
  bool Flush();
  // Wakes neighbours who sleep on messages of ours. Sending alone does not: two ranks in step find their messages by
  // themselves, and a needless wake-up costs more than the message.
  void RingUnread();
  bool unrung() const { return unrung_; }                // there may be something to ring for
  bool congested() const { return waiting_cells_ > 0; }  // somebody's inbox is full; nobody says when it has room again
  bool AllSent() const;
  // Something happened on descriptor `fd`.
  void OnEvent(int fd);
  void LookEverywhere();  // the next Receive reads all links
  // Nobody waits until what this rank has not taken is sent.
  void DropUnsent(int rank);
  bool unread() const { return unread_; }  // something may have come that the poller will not speak of again
  bool has_links() const { return has_links_.load(std::memory_order_relaxed); }  // from any thread
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }        // messages so far; likewise
  std::vector<int> LinkedRanks() const;
  // TCP links that are up or vital, with the time since anything came over them.
  struct Sign {
    int rank;
    bool up;
    std::chrono::steady_clock::duration age;
  };
  std::vector<Sign> SignsOfLife() const;

  // Links that broke since the last call: rank and reason.
  std::vector<std::pair<int, std::string>> TakeBroken();
  void CloseDescriptors();

 private:
  struct Cell {
    std::string bytes;
    bool more;
  };
  struct Outbox {  // what goes into a neighbour's inbox
    Neighbour* neighbour;
    std::deque<Cell> waiting;
    uint64_t last_cell = 0;  // where our latest went
    bool unrung = false;
  };
  struct Unsent {
    std::string message, open;
    size_t data;
  };
  struct Link {
    int fd = -1;
    bool broken = false, readable = true, vital = false;
    std::string refused;  // why nothing can be sent any more: what the other end said before that is read to its end
    std::chrono::steady_clock::time_point heard;
    std::deque<Unsent> waiting;  // until the stream is there
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
  std::map<uint32_t, std::string> partial_;  // messages of which more cells will come, by writer
  std::vector<std::pair<int, std::string>> broken_;
  size_t waiting_cells_ = 0;
  size_t data_at_hand_ = 0;        // of the message that the handler looks at
  Tally* data_counter_ = nullptr;  // what its tensor data count as; null outside a handler
  bool unrung_ = false;            // any outbox
  bool unread_ = false;            // any link
};

}  // namespace hvd
