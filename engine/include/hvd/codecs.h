/* SPDX-License-Identifier: Apache-2.0
 * The codecs of libhvd, which make gradients smaller on the wire: pure functions over float32 in the caller's memory,
 * for any thread. engine/codecs/codecs.h describes the formats. Wires may begin at any address. Clients include
 * hvd/engine.h instead of this file. */
#ifndef HVD_CODECS_H_
#define HVD_CODECS_H_

#include <stdint.h>

struct hvd_status;

/* Encoders encode p = values + residual, or values alone where residual is NULL. `left` receives p minus what the wire
 * decodes to, unless it is NULL; it may be the memory of values or of residual. Where p is not
 * finite, int8 and onebit fill that block of `left` with NaN, and topk leaves p as it is. Decoders write factor * value
 * to `out`, or add it where accumulate is not 0. decode_sum writes factor * (first + second + ...), at least one wire.
 */
typedef struct hvd_codecs {
  uint32_t size;
  const char* (*flavour)(void); /* the instruction set in use, such as "avx2"; the bits are the same for all */
  int32_t (*is_finite)(const float* values, uint64_t count);
  /* A scale for each `block` > 0 values, then one byte for each value. */
  uint64_t (*int8_bytes)(uint64_t count, uint64_t block);
  void (*int8_encode)(const float* values, const float* residual, float* left, uint64_t count, uint64_t block,
                      void* wire);
  void (*int8_decode)(const void* wire, uint64_t count, uint64_t block, float factor, float* out, int32_t accumulate);
  void (*int8_decode_sum)(const void* const* wires, uint64_t wire_count, uint64_t count, uint64_t block, float factor,
                          float* out);
  /* A mean for each 4,096 values, then one bit for each value. */
  uint64_t (*onebit_bytes)(uint64_t count);
  void (*onebit_encode)(const float* values, const float* residual, float* left, uint64_t count, void* wire);
  void (*onebit_decode)(const void* wire, uint64_t count, float factor, float* out, int32_t accumulate);
  void (*onebit_decode_sum)(const void* const* wires, uint64_t wire_count, uint64_t count, float factor, float* out);
  /* Pairs of an int32 index and a float32 value, 8 bytes for each. topk_pairs: the most that a message has when k are
   * wanted. topk_encode returns the number of pairs, at most topk_pairs(k) and at most `capacity`; or -1 and a status.
   * count is below 2^31, k and capacity are at least 1, and `wire` has room for `capacity` pairs.
   * topk_decode refuses a message with an index that is out of range, or of a wrong length, and then writes nothing. */
  uint64_t (*topk_pairs)(uint64_t k);
  int64_t (*topk_encode)(const float* values, const float* residual, float* left, uint64_t count, uint64_t k,
                         uint64_t capacity, void* wire, struct hvd_status*);
  int32_t (*topk_decode)(const void* wire, uint64_t bytes, uint64_t count, float factor, float* out, int32_t accumulate,
                         struct hvd_status*);
} hvd_codecs;

#endif /* HVD_CODECS_H_ */
