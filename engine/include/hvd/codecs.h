/* SPDX-License-Identifier: Apache-2.0
 * Gradient compression codecs of libhvd: pure functions over float32 in the caller's memory, callable from any thread.
 * engine/codecs/codecs.h describes the formats. Encoded messages ("wires") may begin at any address. Clients include
 * hvd/engine.h instead of this file. */
#ifndef HVD_CODECS_H_
#define HVD_CODECS_H_

#include <stdint.h>

struct hvd_status;

/* Encoders encode p = values + residual, or values alone if residual is NULL. `left` receives p minus the decoded
 * wire, unless `left` is NULL; it may be the same memory as values or residual. Where p is not finite, int8 and
 * onebit fill that block of `left` with NaN, and topk copies p to `left`. Decoders write factor * value to `out`, or
 * add it if accumulate is not 0. decode_sum writes factor * (first + second + ...); it needs at least one wire. */
typedef struct hvd_codecs {
  uint32_t size;
  const char* (*flavour)(void); /* name of the instruction set in use, such as "avx2"; it does not affect the results */
  int32_t (*is_finite)(const float* values, uint64_t count);
  /* int8 wire: a float32 scale for each block of `block` > 0 values, then one byte for each value. */
  uint64_t (*int8_bytes)(uint64_t count, uint64_t block);
  void (*int8_encode)(const float* values, const float* residual, float* left, uint64_t count, uint64_t block,
                      void* wire);
  void (*int8_decode)(const void* wire, uint64_t count, uint64_t block, float factor, float* out, int32_t accumulate);
  void (*int8_decode_sum)(const void* const* wires, uint64_t wire_count, uint64_t count, uint64_t block, float factor,
                          float* out);
  /* onebit wire: a mean for each 4,096 values, then one bit for each value. */
  uint64_t (*onebit_bytes)(uint64_t count);
  void (*onebit_encode)(const float* values, const float* residual, float* left, uint64_t count, void* wire);
  void (*onebit_decode)(const void* wire, uint64_t count, float factor, float* out, int32_t accumulate);
  void (*onebit_decode_sum)(const void* const* wires, uint64_t wire_count, uint64_t count, float factor, float* out);
  /* topk wire: pairs of an int32 index and a float32 value, 8 bytes for each pair. topk_pairs returns the largest
   * number of pairs in a message when k are requested. topk_encode returns the number of pairs, at most
   * topk_pairs(k) and at most `capacity`, or -1 and a status. count must be below 2^31, k and capacity at least 1,
   * and `wire` must have room for `capacity` pairs. If an index is out of range or the length is wrong, topk_decode
   * returns an error and writes nothing. */
  uint64_t (*topk_pairs)(uint64_t k);
  int64_t (*topk_encode)(const float* values, const float* residual, float* left, uint64_t count, uint64_t k,
                         uint64_t capacity, void* wire, struct hvd_status*);
  int32_t (*topk_decode)(const void* wire, uint64_t bytes, uint64_t count, float factor, float* out, int32_t accumulate,
                         struct hvd_status*);
} hvd_codecs;

#endif /* HVD_CODECS_H_ */
