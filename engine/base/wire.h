// SPDX-License-Identifier: Apache-2.0
// Little-endian encoding of values in control messages. The Get functions check every length and return false if the
// input is too short.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hvd::wire {

template <typename T>
void Put(std::string* out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
bool Get(std::string_view* in, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (in->size() < sizeof *value) return false;
  std::memcpy(value, in->data(), sizeof *value);
  in->remove_prefix(sizeof *value);
  return true;
}

inline void PutString(std::string* out, std::string_view text) {
  Put<uint32_t>(out, static_cast<uint32_t>(text.size()));
  out->append(text);
}

inline bool GetString(std::string_view* in, std::string* text) {
  uint32_t size = 0;
  if (!Get(in, &size) || in->size() < size) return false;
  text->assign(in->data(), size);
  in->remove_prefix(size);
  return true;
}

template <typename T>
void PutVector(std::string* out, const std::vector<T>& values) {
  Put<uint32_t>(out, static_cast<uint32_t>(values.size()));
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
bool GetVector(std::string_view* in, std::vector<T>* values) {
  static_assert(std::is_trivially_copyable_v<T>);
  uint32_t size = 0;
  if (!Get(in, &size) || in->size() / sizeof(T) < size) return false;
  values->resize(size);
  if (size) std::memcpy(values->data(), in->data(), size * sizeof(T));
  in->remove_prefix(size * sizeof(T));
  return true;
}

}  // namespace hvd::wire
