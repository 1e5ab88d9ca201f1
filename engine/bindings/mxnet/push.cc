// SPDX-License-Identifier: Apache-2.0
// Collectives as operations of MXNet's dependency engine: an operation starts when MXNet has its arrays ready, and when
// it is done MXNet continues with the operations that depend on it. No Python runs in between. The build needs nothing
// of MXNet, because its C functions are looked up at run time.
#include <dlfcn.h>
#include <hvd/engine.h>

#include <atomic>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Array = void*;  // MXNet's NDArrayHandle

// Completion callback that MXNet passes to an operation (mxnet/engine.h, equal in all of 1.x). It is copied, and called
// once on any thread. The error is a dmlc::Error, which is a std::runtime_error without additions; MXNet copies it.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const std::runtime_error* error);
  void* engine;
  void* operation;
};

struct Context {
  int32_t device_type = 1;  // CPU
  int32_t device_id = 0;
};

// First fields of a DLManagedTensor (DLPack is a stable ABI).
struct Managed {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

constexpr int kStartSoon = 3;  // FnProperty::kCPUPrioritized: the operation does not queue behind long computations

struct Library {
  int (*MXEnginePushAsyncND)(void (*)(void*, void*, void*), void* task, void (*deleter)(void*), const Context*,
                             Array* read, int reads, Array* written, int writes, const int* property, int priority,
                             const char* name, bool wait);
  int (*MXShallowCopyNDArray)(Array, Array*);
  int (*MXNDArrayFree)(Array);
  int (*MXNDArrayToDLPack)(Array, Managed**);
  int (*MXNDArrayCallDLPackDeleter)(Managed*);
  const char* (*MXGetLastError)();
};
Library mxnet;

const hvd_api* Api() {
  static const hvd_api* const api = hvd_get_api(HVD_ABI_VERSION);
  return api;
}

// Return a value that is equal for arrays in the same memory: the pointer to that memory is the first member of an
// NDArray. Python checks this assumption with hvd_mxnet_memory.
const void* Memory(Array array) { return *static_cast<const void* const*>(array); }

// Collective in MXNet's queue. It owns copies of its arguments, because the caller's memory is gone when it starts.
class Task {
 public:
  Task(hvd_world* world, int32_t process_set, const char* group)
      : world_(world), process_set_(process_set), group_(group ? group : "") {}
  ~Task() {
    for (Array array : inputs_) mxnet.MXNDArrayFree(array);
    for (Array array : outputs_) mxnet.MXNDArrayFree(array);
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Add a collective and copy what `op` points to.
  void Add(hvd_op op) {
    names_.emplace_back(op.name);
    numbers_.emplace_back(op.shape, op.shape + op.ndim);
    op.shape = numbers_.back().data();
    numbers_.emplace_back(op.splits, op.splits + op.nsplits);
    op.splits = numbers_.back().data();
    op.name = names_.back().c_str();
    ops_.push_back(op);
  }

  // Take references to the arrays, because Python may drop its own at any time. Return false on failure; MXNet has
  // recorded the reason.
  bool KeepArrays() {
    for (hvd_op& op : ops_) {
      if (!Keep(const_cast<void*>(op.input), &inputs_) || !Keep(op.output, &outputs_)) return false;
    }
    // List each array once, because MXNet would wait indefinitely for an array that is listed twice. Views of one array
    // count as that array.
    for (Array array : outputs_) {
      if (!Holds(written_, array)) written_.push_back(array);
    }
    for (Array array : inputs_) {
      if (!Holds(written_, array) && !Holds(read_, array)) read_.push_back(array);
    }
    return true;
  }

  int Push(int32_t priority) {
    const Context cpu;
    return mxnet.MXEnginePushAsyncND(Start, this, Delete, &cpu, read_.data(), static_cast<int>(read_.size()),
                                     written_.data(), static_cast<int>(written_.size()), &kStartSoon, priority,
                                     name().c_str(), false);
  }

 private:
  static bool Keep(Array array, std::vector<Array>* kept) {
    Array own = nullptr;
    if (mxnet.MXShallowCopyNDArray(array, &own)) return false;
    kept->push_back(own);
    return true;
  }

  static bool Holds(const std::vector<Array>& arrays, Array wanted) {
    for (Array array : arrays) {
      if (Memory(array) == Memory(wanted)) return true;
    }
    return false;
  }

  static void Delete(void* task) { delete static_cast<Task*>(task); }

  static void Start(void*, void* on_complete, void* pointer) {
    Task* const task = static_cast<Task*>(pointer);
    task->on_complete_ = *static_cast<OnComplete*>(on_complete);
    task->Submit();
    task->Leave();
  }

  void Submit() {
    for (size_t i = 0; i < ops_.size(); ++i) {
      void* input = nullptr;
      if (!Find(inputs_[i], &input) || !Find(outputs_[i], &ops_[i].output)) return;
      ops_[i].input = input;
    }
    hvd_status status{};
    parties_.fetch_add(1);
    const int64_t handle = Api()->submit(world_, process_set_, ops_.data(), static_cast<int32_t>(ops_.size()),
                                         group_.empty() ? nullptr : group_.c_str(), 0, Done, this, &status);
    if (handle) {
      Api()->release(world_, handle);
    } else {
      Note(status);
      parties_.fetch_sub(1);
    }
  }

  // Find the address of an array's elements, which have been computed by now. MXNDArrayGetData cannot be used: if it
  // must convert the array to the default layout it waits for the array, and inside an operation that wait never ends.
  // MXNDArrayToDLPack returns an error instead.
  bool Find(Array array, void** data) {
    Managed* managed = nullptr;
    if (mxnet.MXNDArrayToDLPack(array, &managed)) {
      error_ = std::string("HorovodArgumentError: ") + mxnet.MXGetLastError();
      return false;
    }
    *data = static_cast<char*>(managed->data) + managed->byte_offset;
    mxnet.MXNDArrayCallDLPackDeleter(managed);
    return true;
  }

  static void Done(void* context, const hvd_status* status) {
    Task* const task = static_cast<Task*>(context);
    if (status->code != HVD_OK) task->Note(*status);
    task->Leave();
  }

  // Record the error. MXNet's Python raises an exception of the class at the start of the text; horovod/mxnet/queue.py
  // parses the rest.
  void Note(const hvd_status& status) {
    if (status.code == HVD_INVALID || status.code == HVD_NOT_IMPLEMENTED) {
      error_ =
          std::string(status.code == HVD_INVALID ? "HorovodArgumentError: " : "NotImplementedError: ") + status.text;
      return;
    }
    const char* kind = status.code == HVD_MISMATCH ? "HorovodMismatchError: " : "HorovodInternalError: ";
    error_ = kind + std::to_string(status.lost_rank) + " " + name() + "\n" + status.text;
  }

  const std::string& name() const { return group_.empty() ? names_[0] : group_; }

  // Release the task for one of its two parties, Start and the engine's callback, which may finish in either order. The
  // last one informs MXNet, after which neither the world nor the task is used here.
  void Leave() {
    if (parties_.fetch_sub(1) > 1) return;
    const OnComplete end = on_complete_;
    if (error_.empty()) {
      end.callback(end.engine, end.operation, nullptr);
    } else {
      const std::runtime_error error(error_);
      end.callback(end.engine, end.operation, &error);
    }
  }

  hvd_world* const world_;
  const int32_t process_set_;
  const std::string group_;
  std::vector<hvd_op> ops_;
  std::deque<std::string> names_;  // a deque, so that names do not move when more are added
  std::deque<std::vector<int64_t>> numbers_;
  std::vector<Array> inputs_, outputs_, read_, written_;
  OnComplete on_complete_{};
  std::atomic<int> parties_{1};
  std::string error_;
};

template <typename Function>
bool Look(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

extern "C" {

// Look up MXNet's functions in the dlopen handle of libmxnet; call once. Return NULL, or the name of a function that
// this MXNet lacks.
__attribute__((visibility("default"))) const char* hvd_mxnet_use(void* library) {
#define HVD_LOOK(name) \
  if (!Look(library, #name, &mxnet.name)) return #name
  HVD_LOOK(MXEnginePushAsyncND);
  HVD_LOOK(MXShallowCopyNDArray);
  HVD_LOOK(MXNDArrayFree);
  HVD_LOOK(MXNDArrayToDLPack);
  HVD_LOOK(MXNDArrayCallDLPackDeleter);
  HVD_LOOK(MXGetLastError);
#undef HVD_LOOK
  return nullptr;
}

__attribute__((visibility("default"))) const void* hvd_mxnet_memory(void* array) { return Memory(array); }

// Create a task for one collective (group NULL) or for a group; add the tensors next. The world must outlive the task.
__attribute__((visibility("default"))) void* hvd_mxnet_new(hvd_world* world, int32_t process_set, const char* group) {
  return new Task(world, process_set, group);
}

// Add a tensor. `input` and `output` are NDArrayHandles, equal for an operation in place.
__attribute__((visibility("default"))) void hvd_mxnet_add(void* task, int32_t kind, const char* name, int32_t dtype,
                                                          const int64_t* shape, int32_t ndim, void* input, void* output,
                                                          int32_t reduce_op, double prescale, double postscale,
                                                          int32_t root, const int64_t* splits, int32_t nsplits,
                                                          int32_t wire_dtype) {
  hvd_op op{};
  op.size = sizeof op;
  op.kind = kind;
  op.dtype = dtype;
  op.reduce_op = reduce_op;
  op.root = root;
  op.device = -1;
  op.ndim = ndim;
  op.nsplits = nsplits;
  op.name = name;
  op.shape = shape;
  op.splits = splits;
  op.input = input;
  op.output = output;
  op.prescale = prescale;
  op.postscale = postscale;
  op.wire_dtype = wire_dtype;
  static_cast<Task*>(task)->Add(op);
}

// Queue the task and take ownership of it. Return 0, or -1 after an error, which MXGetLastError describes, as MXNet's C
// interface does.
__attribute__((visibility("default"))) int hvd_mxnet_push(void* task, int32_t priority) {
  std::unique_ptr<Task> pushed(static_cast<Task*>(task));
  if (!pushed->KeepArrays()) return -1;
  return pushed.release()->Push(priority);
}

}  // extern "C"
