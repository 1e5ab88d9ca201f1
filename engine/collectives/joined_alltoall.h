// SPDX-License-Identifier: Apache-2.0
// Alltoall of small messages over hosts with equal numbers of members. A member sends the data for all members of a
// host to its counterpart there as one message; the counterpart distributes it inside its host. All messages are as
// long as the longest could be, so that lengths and rows travel together.
#pragma once

#include <functional>
#include <vector>

#include "collectives/host_grid.h"

namespace hvd {

class JoinedAlltoall : public Machine {
 public:
  // Return true if this algorithm fits and pays off; the result is equal on all members. `largest` is the number of
  // rows in the largest split of any pair.
  static bool Pays(const HostGrid& grid, size_t row_bytes, int64_t largest);

  // The arguments are those of Alltoall.
  JoinedAlltoall(const HostGrid& grid, const std::byte* in, const std::vector<int64_t>& splits, size_t row_bytes,
                 int64_t largest, std::function<std::byte*(const std::vector<int64_t>&)> allocate);
  Step Advance() override;

 private:
  void Write(int member, std::byte* to) const;
  bool SendAcross();
  bool PassOn();
  bool Collect();
  void Deliver();

  HostGrid grid_;
  const std::byte* in_;
  std::vector<int64_t> splits_;
  std::vector<size_t> begins_;
  size_t row_bytes_, message_bytes_;
  std::function<std::byte*(const std::vector<int64_t>&)> allocate_;
  std::vector<const std::byte*> pieces_;
  std::vector<std::byte> own_;  // the data that this member forwards to itself
  bool sent_ = false, passed_on_ = false;
};

}  // namespace hvd
