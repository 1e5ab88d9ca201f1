// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensorflow/registry.h"

namespace hvd::tensorflow {

// The objects below are leaked on purpose, because TensorFlow's threads may outlive static destructors.
bindings::Contexts& AllContexts() {
  static auto* contexts = new bindings::Contexts;
  return *contexts;
}

Topology& Topology::Current() {
  static auto* topology = new Topology;
  return *topology;
}

void Topology::Set(const Place& place) {
  std::lock_guard<std::mutex> lock(mutex_);
  place_ = place;
}

void Topology::SetProcessSet(int32_t id, const KnownSet& set) {
  std::lock_guard<std::mutex> lock(mutex_);
  sets_[id] = set;
}

void Topology::ForgetProcessSet(int32_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  sets_.erase(id);
  if (id == 0) place_.initialized = false;
}

Place Topology::place() {
  std::lock_guard<std::mutex> lock(mutex_);
  return place_;
}

bool Topology::Find(int32_t id, KnownSet* set) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = sets_.find(id);
  if (found == sets_.end()) return false;
  *set = found->second;
  return true;
}

Program* Program::Find(int64_t number) {
  static auto* mutex = new std::mutex;
  static auto* programs = new std::map<int64_t, Program>;
  if (number == 0) return nullptr;
  std::lock_guard<std::mutex> lock(*mutex);
  return &(*programs)[number];
}

void Program::Add(const std::string& node) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (nodes_.insert(node).second) collectives_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace hvd::tensorflow

#define HVD_TENSORFLOW_EXPORT extern "C" __attribute__((visibility("default")))

HVD_TENSORFLOW_EXPORT void hvd_tensorflow_bind(int64_t context, void* world, int32_t process_set, int32_t size,
                                               int32_t index, int32_t rank) {
  hvd::tensorflow::AllContexts().Bind(context, {static_cast<hvd_world*>(world), process_set, size, index, rank});
}

HVD_TENSORFLOW_EXPORT void hvd_tensorflow_unbind(int64_t context) { hvd::tensorflow::AllContexts().Unbind(context); }

HVD_TENSORFLOW_EXPORT void hvd_tensorflow_place(int32_t rank, int32_t local_rank, int32_t local_size) {
  hvd::tensorflow::Topology::Current().Set({true, rank, local_rank, local_size});
}

HVD_TENSORFLOW_EXPORT void hvd_tensorflow_process_set(int32_t id, int32_t size, int32_t included) {
  hvd::tensorflow::Topology::Current().SetProcessSet(id, {size, included != 0});
}

HVD_TENSORFLOW_EXPORT void hvd_tensorflow_forget_process_set(int32_t id) {
  hvd::tensorflow::Topology::Current().ForgetProcessSet(id);
}
