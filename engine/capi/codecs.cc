// SPDX-License-Identifier: Apache-2.0
// The codecs as C functions.
#include "capi/codecs.h"

#include <limits>

#include "capi/guard.h"
#include "codecs/codecs.h"

namespace hvd {
namespace {

void Int8Encode(const float* values, const float* residual, float* left, uint64_t count, uint64_t block, void* wire) {
  EncodeInt8({values, residual, left, count}, block, wire);
}

void Int8Decode(const void* wire, uint64_t count, uint64_t block, float factor, float* out, int32_t accumulate) {
  DecodeInt8(&wire, 1, block, {out, count, factor, accumulate != 0});
}

void Int8DecodeSum(const void* const* wires, uint64_t wire_count, uint64_t count, uint64_t block, float factor,
                   float* out) {
  DecodeInt8(wires, wire_count, block, {out, count, factor, false});
}

void OneBitEncode(const float* values, const float* residual, float* left, uint64_t count, void* wire) {
  EncodeOneBit({values, residual, left, count}, wire);
}

void OneBitDecode(const void* wire, uint64_t count, float factor, float* out, int32_t accumulate) {
  DecodeOneBit(&wire, 1, {out, count, factor, accumulate != 0});
}

void OneBitDecodeSum(const void* const* wires, uint64_t wire_count, uint64_t count, float factor, float* out) {
  DecodeOneBit(wires, wire_count, {out, count, factor, false});
}

int64_t TopKEncode(const float* values, const float* residual, float* left, uint64_t count, uint64_t k,
                   uint64_t capacity, void* wire, hvd_status* status) {
  if (count > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) || (count > 0 && capacity == 0)) {
    Fill(Status::Invalid("a top-k message holds at least 1 pair, of at most 2^31 - 1 values"), status);
    return -1;
  }
  return Guard<int64_t>(
      status, -1, [&] { return static_cast<int64_t>(EncodeTopK({values, residual, left, count}, k, capacity, wire)); });
}

int32_t TopKDecode(const void* wire, uint64_t bytes, uint64_t count, float factor, float* out, int32_t accumulate,
                   hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    const Status result = DecodeTopK(wire, bytes, {out, count, factor, accumulate != 0});
    Fill(result, status);
    return static_cast<int32_t>(result.code);
  });
}

}  // namespace

const hvd_codecs kCodecsApi = {sizeof(hvd_codecs),
                               CodecFlavour,
                               [](const float* values, uint64_t count) -> int32_t { return IsFinite(values, count); },
                               [](uint64_t count, uint64_t block) -> uint64_t { return Int8Bytes(count, block); },
                               Int8Encode,
                               Int8Decode,
                               Int8DecodeSum,
                               [](uint64_t count) -> uint64_t { return OneBitBytes(count); },
                               OneBitEncode,
                               OneBitDecode,
                               OneBitDecodeSum,
                               [](uint64_t k) -> uint64_t { return TopKPairs(k); },
                               TopKEncode,
                               TopKDecode};

}  // namespace hvd
