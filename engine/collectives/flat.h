// SPDX-License-Identifier: Apache-2.0
// Several tensors seen as one run of bytes, so that a fused batch needs no fusion buffer: chunks are gathered straight
// from the tensors into the transport and scattered straight back. In a run of a half type some tensors may be float32,
// to be converted on the way out and on the way back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hvd {

class Flat {
 public:
  // `bytes` of the run. `wide`: the tensor is float32, twice as large.
  void Add(void* data, size_t bytes, bool wide = false) {
    if (bytes == 0) return;
    parts_.push_back({static_cast<std::byte*>(data), size_, bytes, wide});
    size_ += bytes;
  }
  size_t size() const { return size_; }
  // What is written will have left the caches before anybody reads it.
  void set_cold(bool cold) { cold_ = cold; }
  bool cold() const { return cold_; }

  // Calls visit(data, bytes, offset from `begin`, wide) for each stretch of [begin, begin + length) that lies in one
  // tensor.
  template <typename Visit>
  void ForRange(size_t begin, size_t length, Visit visit) const {
    if (length == 0) return;
    size_t done = 0;
    for (size_t i = PartAt(begin); done < length; ++i) {
      const Part& part = parts_[i];
      const size_t inside = begin + done - part.begin;
      const size_t bytes = std::min(length - done, part.size - inside);
      visit(part.data + (part.wide ? 2 * inside : inside), bytes, done, part.wide);
      done += bytes;
    }
  }

  // The address of a range that lies in one tensor as it is, else nullptr.
  std::byte* Contiguous(size_t begin, size_t length) const {
    if (length == 0) return nullptr;
    const Part& part = parts_[PartAt(begin)];
    const size_t inside = begin - part.begin;
    return inside + length <= part.size && !part.wide ? part.data + inside : nullptr;
  }

 private:
  struct Part {
    std::byte* data;
    size_t begin;
    size_t size;
    bool wide;
  };

  size_t PartAt(size_t offset) const {
    auto after = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                  [](size_t value, const Part& part) { return value < part.begin; });
    return static_cast<size_t>(after - parts_.begin()) - 1;
  }

  std::vector<Part> parts_;
  size_t size_ = 0;
  bool cold_ = false;
};

}  // namespace hvd
