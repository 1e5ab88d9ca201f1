// SPDX-License-Identifier: Apache-2.0
// Top-k codec except for the selecting loop: choice of the threshold, handling of too many values that reach it, and
// validation of received messages.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/half.h"
#include "codecs/codec_choice.h"

namespace hvd {
namespace {

constexpr uint32_t kBitsOfInfinity = 0x7f800000;

uint32_t AbsBits(float value) { return BitsOf(value) & 0x7fffffff; }

// Return the k-th largest number, k >= 1; this reorders `numbers`.
uint32_t KthLargest(std::vector<uint32_t>* numbers, size_t k) {
  const auto place = numbers->begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(numbers->begin(), place, numbers->end(), std::greater<uint32_t>());
  return *place;
}

// Return |p| of one value in each of `size` parts of equal length. A fixed hash gives the position in the part, because
// a fixed distance might always meet one column of a matrix. Codecs for GPUs (horovod.torch.codecs) use equal
// positions.
std::vector<uint32_t> SampleMagnitudes(const CodecInput& input, size_t size) {
  constexpr uint32_t kMultiplier = 2654435761;
  std::vector<uint32_t> sample(size);
  const uint64_t length = input.count / size;
  for (size_t i = 0; i < size; i++) {
    const uint64_t hashed = static_cast<uint32_t>(i) * kMultiplier;
    const size_t at = i * input.count / size + static_cast<size_t>((hashed * length) >> 32);
    sample[i] = AbsBits(input.residual ? input.values[at] + input.residual[at] : input.values[at]);
  }
  return sample;
}

// Return the bits of an estimate of the k-th largest |p|, limited to the range from the smallest positive number to
// infinity.
uint32_t EstimateThreshold(const CodecInput& input, size_t k) {
  constexpr size_t kMinSample = 1024, kSampleShare = 100;
  const size_t size = std::min(std::max(kMinSample, input.count / kSampleShare), input.count);
  std::vector<uint32_t> sample = SampleMagnitudes(input, size);
  const size_t rank = (std::min(k, input.count) * size + input.count / 2) / input.count;
  const uint32_t threshold = KthLargest(&sample, std::max<size_t>(rank, 1));
  return std::min(std::max(threshold, 1u), kBitsOfInfinity);
}

// Collector of pairs. It writes to the wire, and to its own memory once there are more pairs than a message may have.
// Then it keeps the largest and raises the threshold, so that one pass over the values suffices.
class PairCollector {
 public:
  PairCollector(void* wire, size_t limit, float* left, uint32_t threshold)
      : wire_(static_cast<uint8_t*>(wire)), limit_(limit), left_(left), threshold_(threshold) {}

  uint32_t threshold() const { return threshold_; }

  void Add(const int32_t* indices, const float* values, size_t count) {
    for (size_t i = 0; i < count; i++) is_finite_ &= AbsBits(values[i]) < kBitsOfInfinity;
    if (!is_finite_) return PutBack(indices, values, count);
    if (spilled_indices_.empty() && count_ + count <= limit_) {
      std::memcpy(wire_ + count_ * sizeof(int32_t), indices, count * sizeof(int32_t));
      std::memcpy(wire_ + (limit_ + count_) * sizeof(float), values, count * sizeof(float));
    } else {
      if (spilled_indices_.empty()) Spill();
      std::memcpy(spilled_indices_.data() + count_, indices, count * sizeof(int32_t));
      std::memcpy(spilled_values_.data() + count_, values, count * sizeof(float));
    }
    count_ += count;
    if (count_ > 2 * limit_) KeepLargest();
  }

  // Complete the message and return the number of pairs. `first` is the first value, which is sent if all values are 0.
  size_t Finish(float first) {
    if (count_ > limit_ && is_finite_) KeepLargest();
    if (!is_finite_) {
      PutBackAll();
      return WriteOne(FloatOf(0x7fc00000));
    }
    if (count_ == 0) return WriteOne(first);
    if (spilled_indices_.empty()) {
      std::memmove(wire_ + count_ * sizeof(int32_t), wire_ + limit_ * sizeof(int32_t), count_ * sizeof(float));
    } else {
      std::memcpy(wire_, spilled_indices_.data(), count_ * sizeof(int32_t));
      std::memcpy(wire_ + count_ * sizeof(int32_t), spilled_values_.data(), count_ * sizeof(float));
    }
    return count_;
  }

 private:
  size_t WriteOne(float value) {
    const int32_t index = 0;
    std::memcpy(wire_, &index, sizeof index);
    std::memcpy(wire_ + sizeof index, &value, sizeof value);
    return 1;
  }

  void Spill() {
    spilled_indices_.resize(2 * limit_ + kSelectChunk);
    spilled_values_.resize(2 * limit_ + kSelectChunk);
    std::memcpy(spilled_indices_.data(), wire_, count_ * sizeof(int32_t));
    std::memcpy(spilled_values_.data(), wire_ + limit_ * sizeof(int32_t), count_ * sizeof(float));
  }

  // Keep the largest pairs. Among equal values the first are kept, so from now on only larger values are of use.
  void KeepLargest() {
    std::vector<uint32_t> magnitudes(count_);
    for (size_t i = 0; i < count_; i++) magnitudes[i] = AbsBits(spilled_values_[i]);
    const uint32_t smallest = KthLargest(&magnitudes, limit_);
    const auto is_larger = [smallest](uint32_t magnitude) { return magnitude > smallest; };
    const auto larger = std::count_if(magnitudes.begin(), magnitudes.end(), is_larger);
    size_t equals = limit_ - static_cast<size_t>(larger), kept = 0;
    for (size_t i = 0; i < count_; i++) {
      const int32_t index = spilled_indices_[i];
      const float value = spilled_values_[i];
      const bool equal = AbsBits(value) == smallest;
      if (AbsBits(value) > smallest || (equal && equals > 0)) {
        equals -= equal;
        spilled_indices_[kept] = index;
        spilled_values_[kept++] = value;
      } else {
        PutBack(&index, &value, 1);
      }
    }
    count_ = kept;
    threshold_ = std::min(smallest + 1, kBitsOfInfinity);
  }

  // Store in `left` the values that are not sent.
  void PutBack(const int32_t* indices, const float* values, size_t count) {
    if (left_ == nullptr) return;
    for (size_t i = 0; i < count; i++) left_[indices[i]] = values[i];
  }

  void PutBackAll() {
    for (size_t i = 0; i < count_; i++) {
      int32_t index;
      float value;
      if (spilled_indices_.empty()) {
        std::memcpy(&index, wire_ + i * sizeof index, sizeof index);
        std::memcpy(&value, wire_ + (limit_ + i) * sizeof value, sizeof value);
      } else {
        index = spilled_indices_[i];
        value = spilled_values_[i];
      }
      PutBack(&index, &value, 1);
    }
  }

  uint8_t* const wire_;  // room for `limit` indices, then for `limit` values; Finish closes the gap between them
  const size_t limit_;
  float* const left_;
  uint32_t threshold_;
  size_t count_ = 0;
  bool is_finite_ = true;
  std::vector<int32_t> spilled_indices_;
  std::vector<float> spilled_values_;
};

}  // namespace

size_t EncodeTopK(const CodecInput& input, size_t k, size_t capacity, void* wire) {
  if (input.count == 0 || capacity == 0) return 0;
  const size_t limit = std::min({TopKPairs(std::max<size_t>(k, 1)), capacity, input.count});
  const float first = input.residual ? input.values[0] + input.residual[0] : input.values[0];
  PairCollector pairs(wire, limit, input.left, EstimateThreshold(input, k));
  int32_t indices[kSelectChunk + kSelectSlack];
  float values[kSelectChunk + kSelectSlack];
  for (size_t begin = 0; begin < input.count; begin += kSelectChunk) {
    const CodecInput chunk = {input.values + begin, input.residual ? input.residual + begin : nullptr,
                              input.left ? input.left + begin : nullptr, std::min(kSelectChunk, input.count - begin)};
    const Selection selection = {static_cast<int32_t>(pairs.threshold()), static_cast<int32_t>(begin), indices, values};
    pairs.Add(indices, values, CurrentCodecs().select(chunk, selection));
  }
  return pairs.Finish(first);
}

Status DecodeTopK(const void* wire, size_t bytes, const CodecOutput& output) {
  constexpr size_t kPair = sizeof(int32_t) + sizeof(float);
  if (bytes % kPair != 0) {
    return Status::Invalid("a top-k message of " + std::to_string(bytes) +
                           " bytes is cut off: pairs of an index and a " + "value take 8 bytes each");
  }
  const size_t pairs = bytes / kPair;
  const auto* const indices = static_cast<const uint8_t*>(wire);
  const auto* const values = indices + pairs * sizeof(int32_t);
  for (size_t i = 0; i < pairs; i++) {
    int32_t index;
    std::memcpy(&index, indices + i * sizeof index, sizeof index);
    if (static_cast<uint32_t>(index) >= output.count) {
      return Status::Invalid("pair " + std::to_string(i) + " of a top-k message has index " + std::to_string(index) +
                             ", but there are " + std::to_string(output.count) + " values");
    }
  }
  if (!output.accumulates && output.count > 0) std::memset(output.out, 0, output.count * sizeof(float));
  for (size_t i = 0; i < pairs; i++) {
    int32_t index;
    float value;
    std::memcpy(&index, indices + i * sizeof index, sizeof index);
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    output.out[index] += output.factor * value;
  }
  return {};
}

}  // namespace hvd
