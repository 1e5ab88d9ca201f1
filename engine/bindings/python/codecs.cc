// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/codecs.h"

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "bindings/python/table.h"
#include "bindings/python/unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

const float* In(uintptr_t address) { return reinterpret_cast<const float*>(address); }
float* Out(uintptr_t address) { return reinterpret_cast<float*>(address); }

// horovod.common.codecs checks all arguments; this repeats the checks whose failure would crash the process.
void CheckBlock(uint64_t block) {
  if (block == 0) throw nb::value_error("the block of an int8 codec is 0 values long");
}

std::vector<const void*> Wires(const std::vector<uintptr_t>& addresses) {
  if (addresses.empty()) throw nb::value_error("there are no wires to sum");
  std::vector<const void*> wires;
  for (const uintptr_t address : addresses) wires.push_back(reinterpret_cast<const void*>(address));
  return wires;
}

bool CodecIsFinite(uintptr_t values, uint64_t count) {
  const Unlocked unlocked;
  return Api()->codecs->is_finite(In(values), count) != 0;
}

uint64_t Int8Bytes(uint64_t count, uint64_t block) {
  CheckBlock(block);
  return Api()->codecs->int8_bytes(count, block);
}

void Int8Encode(uintptr_t values, uintptr_t residual, uintptr_t left, uint64_t count, uint64_t block, uintptr_t wire) {
  CheckBlock(block);
  const Unlocked unlocked;
  Api()->codecs->int8_encode(In(values), In(residual), Out(left), count, block, reinterpret_cast<void*>(wire));
}

void Int8Decode(uintptr_t wire, uint64_t count, uint64_t block, float factor, uintptr_t out, bool accumulate) {
  CheckBlock(block);
  const Unlocked unlocked;
  Api()->codecs->int8_decode(reinterpret_cast<const void*>(wire), count, block, factor, Out(out), accumulate);
}

void Int8DecodeSum(const std::vector<uintptr_t>& wires, uint64_t count, uint64_t block, float factor, uintptr_t out) {
  CheckBlock(block);
  const std::vector<const void*> all = Wires(wires);
  const Unlocked unlocked;
  Api()->codecs->int8_decode_sum(all.data(), all.size(), count, block, factor, Out(out));
}

void OneBitEncode(uintptr_t values, uintptr_t residual, uintptr_t left, uint64_t count, uintptr_t wire) {
  const Unlocked unlocked;
  Api()->codecs->onebit_encode(In(values), In(residual), Out(left), count, reinterpret_cast<void*>(wire));
}

void OneBitDecode(uintptr_t wire, uint64_t count, float factor, uintptr_t out, bool accumulate) {
  const Unlocked unlocked;
  Api()->codecs->onebit_decode(reinterpret_cast<const void*>(wire), count, factor, Out(out), accumulate);
}

void OneBitDecodeSum(const std::vector<uintptr_t>& wires, uint64_t count, float factor, uintptr_t out) {
  const std::vector<const void*> all = Wires(wires);
  const Unlocked unlocked;
  Api()->codecs->onebit_decode_sum(all.data(), all.size(), count, factor, Out(out));
}

uint64_t TopKEncode(uintptr_t values, uintptr_t residual, uintptr_t left, uint64_t count, uint64_t k, uint64_t capacity,
                    uintptr_t wire) {
  hvd_status status{};
  int64_t pairs;
  {
    const Unlocked unlocked;
    pairs = Api()->codecs->topk_encode(In(values), In(residual), Out(left), count, k, capacity,
                                       reinterpret_cast<void*>(wire), &status);
  }
  if (pairs < 0) Raise(status);
  return static_cast<uint64_t>(pairs);
}

void TopKDecode(uintptr_t wire, uint64_t bytes, uint64_t count, float factor, uintptr_t out, bool accumulate) {
  hvd_status status{};
  int32_t code;
  {
    const Unlocked unlocked;
    code = Api()->codecs->topk_decode(reinterpret_cast<const void*>(wire), bytes, count, factor, Out(out), accumulate,
                                      &status);
  }
  if (code == HVD_INVALID) throw nb::value_error(status.text);
  if (code != HVD_OK) Raise(status);
}

}  // namespace

void BindCodecs(nb::module_& module) {
  module.def("codec_flavour", [] { return Api()->codecs->flavour(); });
  module.def("codec_is_finite", &CodecIsFinite, "values"_a, "count"_a);
  module.def("codec_int8_bytes", &Int8Bytes, "count"_a, "block"_a);
  module.def("codec_int8_encode", &Int8Encode, "values"_a, "residual"_a, "left"_a, "count"_a, "block"_a, "wire"_a);
  module.def("codec_int8_decode", &Int8Decode, "wire"_a, "count"_a, "block"_a, "factor"_a, "out"_a, "accumulate"_a);
  module.def("codec_int8_decode_sum", &Int8DecodeSum, "wires"_a, "count"_a, "block"_a, "factor"_a, "out"_a);
  module.def("codec_onebit_bytes", [](uint64_t count) { return Api()->codecs->onebit_bytes(count); }, "count"_a);
  module.def("codec_onebit_encode", &OneBitEncode, "values"_a, "residual"_a, "left"_a, "count"_a, "wire"_a);
  module.def("codec_onebit_decode", &OneBitDecode, "wire"_a, "count"_a, "factor"_a, "out"_a, "accumulate"_a);
  module.def("codec_onebit_decode_sum", &OneBitDecodeSum, "wires"_a, "count"_a, "factor"_a, "out"_a);
  module.def("codec_topk_pairs", [](uint64_t k) { return Api()->codecs->topk_pairs(k); }, "k"_a);
  module.def("codec_topk_encode", &TopKEncode, "values"_a, "residual"_a, "left"_a, "count"_a, "k"_a, "capacity"_a,
             "wire"_a);
  module.def("codec_topk_decode", &TopKDecode, "wire"_a, "bytes"_a, "count"_a, "factor"_a, "out"_a, "accumulate"_a);
}

}  // namespace hvd_python
