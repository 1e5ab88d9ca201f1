// SPDX-License-Identifier: Apache-2.0
// Scatter/gather list: several tensors seen as one run of bytes, so that a fused batch needs no fusion buffer. Chunks
// are copied directly between the tensors and the transport. In a run of a half type, a tensor may be float32; its
// elements are converted when they are copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hvd {

class Flat {
 public:
  // Append a tensor that takes `bytes` of the run. If `wide`, the tensor is float32, so it has twice as many bytes
  // itself.
  void Add(void* data, size_t bytes, bool wide = false) {
    if (bytes == 0) return;
    extents_.push_back({static_cast<std::byte*>(data), size_, bytes, wide});
    size_ += bytes;
  }
  // Append [begin, begin + length) of another run.
  void Append(const Flat& from, size_t begin, size_t length) {
    from.ForRange(begin, length, [this](std::byte* data, size_t bytes, size_t, bool wide) { Add(data, bytes, wide); });
  }
  size_t size() const { return size_; }
  // Declare that written data will have left the caches before it is read, so that copies may bypass them.
  void set_cold(bool cold) { cold_ = cold; }
  bool cold() const { return cold_; }

  // Call visit(data, bytes, offset from `begin`, wide) for each stretch of [begin, begin + length) inside one tensor.
  template <typename Visit>
  void ForRange(size_t begin, size_t length, Visit visit) const {
    if (length == 0) return;
    size_t done = 0;
    for (size_t i = ExtentAt(begin); done < length; ++i) {
      const Extent& extent = extents_[i];
      const size_t inside = begin + done - extent.begin;
      const size_t bytes = std::min(length - done, extent.size - inside);
      visit(extent.data + (extent.wide ? 2 * inside : inside), bytes, done, extent.wide);
      done += bytes;
    }
  }

  // Return the address of a range that lies inside one tensor of the run's own type, otherwise nullptr.
  std::byte* Contiguous(size_t begin, size_t length) const {
    if (length == 0) return nullptr;
    const Extent& extent = extents_[ExtentAt(begin)];
    const size_t inside = begin - extent.begin;
    return inside + length <= extent.size && !extent.wide ? extent.data + inside : nullptr;
  }

 private:
  struct Extent {  // part of the run that lies in one tensor
    std::byte* data;
    size_t begin;
    size_t size;
    bool wide;
  };

  size_t ExtentAt(size_t offset) const {
    auto after = std::upper_bound(extents_.begin(), extents_.end(), offset,
                                  [](size_t value, const Extent& extent) { return value < extent.begin; });
    return static_cast<size_t>(after - extents_.begin()) - 1;
  }

  std::vector<Extent> extents_;
  size_t size_ = 0;
  bool cold_ = false;
};

}  // namespace hvd
