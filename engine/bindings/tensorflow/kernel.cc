// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensorflow/kernel.h"

#include <cstring>

namespace hvd::tensorflow {
namespace {

// Bound for concurrent iterations of a loop: TensorFlow runs at most parallel_iterations, which is 10 by default.
constexpr int64_t kIterations = 32;

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int64_t Integer(const char* name) const {
    const Status status;
    int64_t value = 0;
    Tf().TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status.get());
    return value;
  }
  // Return a double attribute. TensorFlow has no double attributes, so its bits travel as an integer.
  double Real(const char* name) const {
    const int64_t bits = Integer(name);
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  bool Flag(const char* name) const {
    const Status status;
    unsigned char value = 0;
    Tf().TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status.get());
    return value != 0;
  }
  std::string Text(const char* name) const {
    const Status status;
    int32_t list_size = 0, size = 0;
    Tf().TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &size, status.get());
    std::string value(size > 0 ? static_cast<size_t>(size) : 0, '\0');
    if (!value.empty()) {
      Tf().TF_OpKernelConstruction_GetAttrString(construction_, name, &value[0], value.size(), status.get());
    }
    return value;
  }

 private:
  TF_OpKernelConstruction* const construction_;
};

}  // namespace

Kernel::Kernel(hvd_kind kind, const char* type, bool grouped, TF_OpKernelConstruction* construction)
    : kind(kind), type(type), grouped(grouped) {
  const Attributes attributes(construction);
  const StringView node = Tf().TF_OpKernelConstruction_GetName(construction);
  name = attributes.Text("tensor_name");
  if (name.empty()) name.assign(node.data, node.size);
  if (attributes.Flag("ignore_name_scope")) name.erase(0, name.rfind('/') + 1);
  program_ = Program::Find(attributes.Integer("program"));
  if (program_) program_->Add(std::string(node.data, node.size));
  if (kind == HVD_JOIN) return;
  reduce_op = attributes.Integer("reduce_op");
  root = attributes.Integer("root_rank");
  context = attributes.Integer("context");
  if (grouped) contents = attributes.Text("contents");
  prescale = attributes.Real("prescale_bits");
  postscale = attributes.Real("postscale_bits");
}

std::string Kernel::NameIn(int64_t iteration) const {
  return iteration > 0 ? name + "#" + std::to_string(iteration % kIterations) : name;
}

// Let a collective that runs alone wait for up to 20 ms on TensorFlow's thread: it drives the engine meanwhile, which
// saves two thread hand-overs and the time for gathering. Other collectives may need this thread to start, so those
// that run beside others do not wait; it is better to start and fuse them all. A node is expected to behave as it did
// the last time.
int Kernel::PatienceMs() const {
  const int history = history_.load(std::memory_order_relaxed);
  const bool only_one = !program_ || program_->collectives() == 1;
  return history == kAlone || (history == kNew && only_one) ? 20 : 0;
}

}  // namespace hvd::tensorflow
