// SPDX-License-Identifier: Apache-2.0
// horovod._engine: the C API for Python. Waiting releases the GIL and checks for signals every 50 ms.
#include <hvd/engine.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/python/array_calls.h"
#include "bindings/python/arrays.h"
#include "bindings/python/arrivals.h"
#include "bindings/python/codecs.h"
#include "bindings/python/exchange.h"
#include "bindings/python/gradient_homes.h"
#include "bindings/python/gradient_table.h"
#include "bindings/python/members.h"
#include "bindings/python/plain_handles.h"
#include "bindings/python/plain_tensors.h"
#include "bindings/python/region.h"
#include "bindings/python/settings.h"
#include "bindings/python/submission.h"
#include "bindings/python/table.h"
#include "bindings/python/tensor_maker.h"
#include "bindings/python/tensor_reader.h"
#include "bindings/python/unlocked.h"
#include "bindings/python/unwinding.h"
#include "bindings/python/vocabulary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using hvd_python::Api;
using hvd_python::Describe;
using hvd_python::EngineCall;
using hvd_python::Raise;
using hvd_python::TensorLocation;

// Call a Python function for its text, on a separate thread of the engine that no other thread waits for. An
// interpreter that is exiting may end this thread when it requests the GIL. Because of noexcept, the thread then stops
// here (see personality.cc).
uint64_t CallTeller(void* function, const uint64_t* thread, char* text, uint64_t capacity) noexcept {
  if (!Py_IsInitialized()) return 0;
  const PyGILState_STATE state = PyGILState_Ensure();
  uint64_t bytes = 0;
  PyObject* const callable = static_cast<PyObject*>(function);
  PyObject* answer = thread ? PyObject_CallFunction(callable, "K", static_cast<unsigned long long>(*thread))
                            : PyObject_CallNoArgs(callable);
  Py_ssize_t size = 0;
  const char* data = answer ? PyUnicode_AsUTF8AndSize(answer, &size) : nullptr;
  if (data) {
    bytes = static_cast<uint64_t>(size) < capacity ? static_cast<uint64_t>(size) : capacity;
    std::memcpy(text, data, bytes);
  }
  PyErr_Clear();
  Py_XDECREF(answer);
  PyGILState_Release(state);
  return bytes;
}

uint64_t TellStackOfAll(void* function, char* text, uint64_t capacity) {
  return CallTeller(function, nullptr, text, capacity);
}

uint64_t TellOfThread(void* function, uint64_t thread, char* text, uint64_t capacity) {
  return CallTeller(function, &thread, text, capacity);
}

using Shape = std::vector<int64_t>;

// Memory that the engine allocated for a result. Python creates arrays over it through the buffer protocol, which takes
// a tenth of the time of nanobind's arrays.
class Output {
 public:
  Output(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~Output() { Api()->free_buffer(data_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  size_t bytes() const { return bytes_; }

  static int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
    const Output* output = nb::inst_ptr<Output>(self);
    return PyBuffer_FillInfo(view, self, output->data_, static_cast<Py_ssize_t>(output->bytes_), 0, flags);
  }

 private:
  void* data_;
  size_t bytes_;
};

PyType_Slot output_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Output::GetBuffer)}, {0, nullptr}};

class World {
 public:
  World(int rank, int size, const std::string& host, const std::string& listen_address, const std::string& world_id,
        uint32_t generation, nb::bytes secret, const nb::dict& settings) {
    hvd_identity identity{};
    identity.size = sizeof identity;
    identity.rank = rank;
    identity.world_size = size;
    identity.host = host.c_str();
    identity.listen_address = listen_address.c_str();
    identity.world_id = world_id.c_str();
    identity.generation = generation;
    identity.secret = reinterpret_cast<const uint8_t*>(secret.c_str());
    identity.secret_size = secret.size();
    const hvd_settings chosen = hvd_python::ReadSettings(settings);
    hvd_status status{};
    world_ = Api()->open(&identity, &chosen, &status);
    if (!world_) Raise(status);
  }
  ~World() {
    if (!world_) return;
    hvd_python::Unlocked unlocked;
    Api()->destroy(world_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The functions are never released, because the threads that call them may outlive this object.
  void TellStack(nb::callable function) { Api()->tell_stack(world_, TellStackOfAll, function.release().ptr()); }
  void TellBlock(nb::callable function) { Api()->tell_block(world_, TellOfThread, function.release().ptr()); }

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(world_); }
  int tcp_port() const { return Api()->tcp_port(world_); }
  std::string local_socket() const { return Api()->local_socket(world_); }

  void Connect(const std::vector<std::tuple<int, std::string, std::string, int, std::string, std::string>>& peers,
               double timeout_s) {
    std::vector<hvd_peer> all;
    for (const auto& [rank, host, address, port, local, machine] : peers) {
      all.push_back({sizeof(hvd_peer), rank, host.c_str(), address.c_str(), port, local.c_str(), machine.c_str()});
    }
    hvd_status status{};
    int32_t code;
    {
      hvd_python::Unlocked unlocked;
      code = Api()->connect(world_, all.data(), static_cast<int32_t>(all.size()), timeout_s, &status);
    }
    if (code != HVD_OK) Raise(status);
  }

  // Leave the world. This may have to wait for other ranks; Ctrl-C ends the wait and leaves at once.
  void Close(bool at_once) {
    while (!Leave(at_once ? 0 : hvd_python::kSignalPeriodMs)) {
      if (PyErr_CheckSignals() == 0) continue;
      nb::python_error interrupt;
      Leave(0);
      throw interrupt;
    }
  }

  bool Fail(const std::string& why) {
    hvd_python::Unlocked unlocked;
    return Api()->fail(world_, why.c_str()) != 0;
  }

  int SharesGpus(int process_set) const { return Api()->shares_gpus(world_, process_set); }

  int64_t Submit(int process_set, const char* name, const EngineCall& call, const TensorLocation& tensor,
                 const std::vector<int64_t>& splits) {
    hvd_op op = Describe(call, tensor, name);
    op.splits = splits.data();
    op.nsplits = static_cast<int32_t>(splits.size());
    return Start(process_set, &op, 1, nullptr, call.flags());
  }

  int64_t SubmitGroup(int process_set, const char* group, const std::vector<const char*>& names, const EngineCall& call,
                      const std::vector<const TensorLocation*>& tensors) {
    const std::vector<hvd_op> ops = DescribeAll(names, call, tensors);
    return Start(process_set, ops.data(), static_cast<int32_t>(ops.size()), group, call.flags());
  }

  // Submit each operation separately. Handles are appended to `started` one by one, so that the caller can release the
  // operations that have started if a later one is refused.
  void SubmitMany(int process_set, const std::vector<const char*>& names, const EngineCall& call,
                  const std::vector<const TensorLocation*>& tensors, nb::list started) {
    for (const hvd_op& op : DescribeAll(names, call, tensors)) {
      started.append(Start(process_set, &op, 1, nullptr, call.flags()));
    }
  }

  void LetWait(int device, uint64_t stream) {
    hvd_status status{};
    if (Api()->let_wait(world_, device, stream, &status) != HVD_OK) Raise(status);
  }

  int64_t PromptStream(int device, int kind, int reduce_op, int dtype) {
    hvd_status status{};
    const int64_t stream = Api()->prompt_stream(world_, device, kind, reduce_op, dtype, &status);
    if (status.code != HVD_OK) Raise(status);
    return stream;
  }

  int64_t OutputRows(int64_t handle, int index) const { return Api()->output_rows(world_, handle, index); }

  void CopyOutput(int64_t handle, int index, uintptr_t to, uint64_t stream) {
    hvd_status status{};
    if (Api()->copy_output(world_, handle, index, reinterpret_cast<void*>(to), stream, &status) != HVD_OK) {
      Raise(status);
    }
  }

  // Wait for all operations and release them, also after a failure; then raise the first failure.
  void FinishAll(const std::vector<int64_t>& handles) {
    hvd_status first{};
    bool failed = false;
    hvd_python::Blocked blocked(world_);
    for (size_t i = 0; i < handles.size();) {
      hvd_status status{};
      int32_t code = HVD_OK;
      {
        hvd_python::Unlocked unlocked;
        while (i < handles.size() && code == HVD_OK) {
          code = Api()->finish(world_, handles[i], hvd_python::kSignalPeriodMs, &status);
          if (code == HVD_OK) ++i;
        }
      }
      if (code == HVD_IN_PROGRESS) {
        if (PyErr_CheckSignals()) throw nb::python_error();
        blocked.Tell(handles[i]);
      } else if (code != HVD_OK) {
        if (!failed) first = status;
        failed = true;
        ++i;
      }
    }
    if (failed) Raise(first);
  }

  bool Poll(int64_t handle) const {
    const int32_t done = Api()->poll(world_, handle);
    if (done < 0) throw nb::value_error("no such handle");
    return done;
  }

  bool Wait(int64_t handle, double timeout_s) {
    hvd_status status;
    const int32_t code = hvd_python::WaitUnlocked(world_, handle, timeout_s, &status);
    if (code != HVD_OK && code != HVD_IN_PROGRESS) Raise(status);
    return code == HVD_OK;
  }

  // Wait for an operation and release it. A wait that a signal interrupts keeps the handle.
  void Finish(int64_t handle) {
    hvd_status status;
    if (hvd_python::FinishUnlocked(world_, handle, true, &status) != HVD_OK) Raise(status);
  }

  auto TakeOutput(int64_t handle, int index) {
    int64_t rows = 0;
    uint64_t bytes = 0;
    void* data = Api()->take_output(world_, handle, index, &rows, &bytes);
    if (!data) throw nb::value_error("this handle has no such output, or it has already been taken");
    return std::make_pair(std::make_unique<Output>(data, static_cast<size_t>(bytes)), rows);
  }

  std::vector<int64_t> ReceivedSplits(int64_t handle, int members) const {
    std::vector<int64_t> rows(static_cast<size_t>(members));
    rows.resize(static_cast<size_t>(Api()->received_splits(world_, handle, rows.data(), members)));
    return rows;
  }

  int64_t Value(int64_t handle) const { return Api()->value(world_, handle); }
  void Release(int64_t handle) { Api()->release(world_, handle); }

  int64_t Send(int peer, int64_t tag, uintptr_t data, uint64_t size, int device, uint64_t stream) {
    hvd_status status{};
    const auto* const from = reinterpret_cast<const void*>(data);
    const int64_t handle = Api()->send(world_, peer, tag, from, size, device, stream, &status);
    if (!handle) Raise(status);
    return handle;
  }
  int64_t Recv(int peer, int64_t tag, uintptr_t data, uint64_t size, int device, uint64_t stream) {
    hvd_status status{};
    auto* const to = reinterpret_cast<void*>(data);
    const int64_t handle = Api()->recv(world_, peer, tag, to, size, device, stream, &status);
    if (!handle) Raise(status);
    return handle;
  }
  // Allocate memory. Return it as a NumPy array of bytes that owns it, with True if the memory is shared.
  auto Allocate(uint64_t bytes) {
    auto buffer = std::make_unique<hvd_buffer>();
    buffer->size = sizeof(hvd_buffer);
    hvd_status status{};
    int32_t code;
    {
      hvd_python::Unlocked unlocked;
      code = Api()->allocate(world_, bytes, buffer.get(), &status);
    }
    if (code != HVD_OK) Raise(status);
    void* const data = buffer->data;
    const bool shared = buffer->shared;
    nb::capsule owner(buffer.release(), [](void* pointer) noexcept {
      std::unique_ptr<hvd_buffer> last(static_cast<hvd_buffer*>(pointer));
      Api()->release_buffer(last.get());
    });
    return std::make_pair(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {static_cast<size_t>(bytes)}, owner),
                          shared);
  }

  std::unique_ptr<hvd_python::Region> AllocateRegion(int process_set, int device, uint64_t bytes) {
    return hvd_python::Region::Allocate(world_, process_set, device, bytes);
  }

  void UseJobs() { Api()->use_jobs(world_); }

  // Return the next job, None if none came within the time, or False if no more will come.
  nb::object NextJob(double timeout_s) {
    hvd_job job{};
    job.size = sizeof job;
    hvd_status status{};
    int32_t code;
    {
      hvd_python::Unlocked unlocked;
      code = Api()->next_job(world_, static_cast<uint32_t>(timeout_s * 1e6), &job, &status);
    }
    if (code == HVD_IN_PROGRESS) return nb::none();
    if (code != HVD_OK) return nb::bool_(false);
    const auto members = static_cast<size_t>(job.members);
    const bool received = job.kind == HVD_ALLGATHER || job.kind == HVD_ALLTOALL || job.kind == HVD_REDUCESCATTER;
    const size_t sent = job.kind == HVD_ALLGATHER ? 1 : job.kind == HVD_ALLTOALL ? members : 0;
    return nb::make_tuple(job.id, job.kind, job.dtype, job.reduce_op, job.root, job.group,
                          std::vector<int32_t>(job.ranks, job.ranks + members), job.in_place != 0,
                          reinterpret_cast<uintptr_t>(job.input), job.input_bytes,
                          reinterpret_cast<uintptr_t>(job.output), job.output_bytes,
                          std::vector<int64_t>(job.sent, job.sent + sent),
                          std::vector<int64_t>(job.received, job.received + (received ? members : 0)));
  }

  void FinishJob(int64_t id, const std::string& error) {
    hvd_python::Unlocked unlocked;
    Api()->finish_job(world_, id, error.empty() ? nullptr : error.c_str());
  }

  void Show(const std::string& name, int64_t began_ns, int64_t ended_ns) {
    Api()->show(world_, name.c_str(), began_ns, ended_ns);
  }

  void UseTuning(uint64_t fusion_threshold, uint64_t cycle_time_us, uint64_t chunk_bytes) {
    Api()->use_tuning(world_, fusion_threshold, cycle_time_us, chunk_bytes);
  }

  std::string DescribeWorld() const { return Api()->describe(world_); }

  // The path is bytes, because not every file name can be encoded in UTF-8.
  void StartTimeline(const nb::bytes& path, bool mark_cycles) {
    hvd_status status{};
    int32_t code;
    {
      hvd_python::Unlocked unlocked;
      code = Api()->start_timeline(world_, path.c_str(), mark_cycles, &status);
    }
    if (code != HVD_OK) Raise(status);
  }
  void StopTimeline() {
    hvd_status status{};
    int32_t code;
    {
      hvd_python::Unlocked unlocked;
      code = Api()->stop_timeline(world_, &status);
    }
    if (code != HVD_OK) Raise(status);
  }

 private:
  // Return true if this rank has left the world.
  bool Leave(int timeout_ms) {
    hvd_python::Unlocked unlocked;
    return Api()->leave(world_, timeout_ms) != HVD_IN_PROGRESS;
  }

  static std::vector<hvd_op> DescribeAll(const std::vector<const char*>& names, const EngineCall& call,
                                         const std::vector<const TensorLocation*>& tensors) {
    if (names.size() != tensors.size()) throw nb::value_error("there must be as many names as tensors");
    std::vector<hvd_op> ops;
    ops.reserve(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      if (!tensors[i]) throw nb::value_error("a tensor's location is None");
      ops.push_back(Describe(call, *tensors[i], names[i]));
    }
    return ops;
  }

  int64_t Start(int process_set, const hvd_op* ops, int32_t count, const char* group, uint32_t flags) {
    hvd_status status;
    const int64_t handle = Api()->submit(world_, process_set, ops, count, group, flags, nullptr, nullptr, &status);
    if (!handle) Raise(status);
    return handle;
  }

  hvd_world* world_ = nullptr;
};

}  // namespace

NB_MODULE(_engine, m) {
  nb::set_leak_warnings(false);  // objects that live until the process ends are not an error of the user
  m.attr("ABI_VERSION") = HVD_ABI_VERSION;
  hvd_python::BindUnwinding(m);
  hvd_python::BindErrors(m);
  hvd_python::BindVocabulary(m);
  hvd_python::BindSettings(m);
  nb::class_<Output>(m, "Output", nb::type_slots(output_slots)).def_prop_ro("nbytes", &Output::bytes);
  hvd_python::BindRegion(m);
  hvd_python::BindSubmission(m);
  nb::class_<World>(m, "World")
      .def(nb::init<int, int, const std::string&, const std::string&, const std::string&, uint32_t, nb::bytes,
                    const nb::dict&>(),
           nb::kw_only(), "rank"_a, "size"_a, "host"_a, "listen_address"_a, "world_id"_a, "generation"_a, "secret"_a,
           "settings"_a)
      .def_prop_ro("address", &World::address)
      .def_prop_ro("tcp_port", &World::tcp_port)
      .def_prop_ro("local_socket", &World::local_socket)
      .def("tell_stack", &World::TellStack, "function"_a)
      .def("tell_block", &World::TellBlock, "function"_a)
      .def("connect", &World::Connect, "peers"_a, "timeout_s"_a)
      .def("close", &World::Close, "at_once"_a = false)
      .def("fail", &World::Fail, "why"_a)
      .def("shares_gpus", &World::SharesGpus, "process_set"_a)
      .def("submit", &World::Submit, "process_set"_a, "name"_a, "call"_a, "tensor"_a,
           "splits"_a = std::vector<int64_t>())
      .def("submit_group", &World::SubmitGroup, "process_set"_a, "group"_a, "names"_a, "call"_a, "tensors"_a)
      .def("submit_many", &World::SubmitMany, "process_set"_a, "names"_a, "call"_a, "tensors"_a, "started"_a)
      .def("let_wait", &World::LetWait, "device"_a, "stream"_a)
      .def("prompt_stream", &World::PromptStream, "device"_a, "kind"_a, "reduce_op"_a, "dtype"_a)
      .def("output_rows", &World::OutputRows, "handle"_a, "index"_a)
      .def("copy_output", &World::CopyOutput, "handle"_a, "index"_a, "to"_a, "stream"_a)
      .def("finish_all", &World::FinishAll, "handles"_a)
      .def("poll", &World::Poll, "handle"_a)
      .def("wait", &World::Wait, "handle"_a, "timeout_s"_a = -1.0)
      .def("finish", &World::Finish, "handle"_a)
      .def("take_output", &World::TakeOutput, "handle"_a, "index"_a = 0)
      .def("received_splits", &World::ReceivedSplits, "handle"_a, "members"_a)
      .def("value", &World::Value, "handle"_a)
      .def("release", &World::Release, "handle"_a)
      .def("send", &World::Send, "peer"_a, "tag"_a, "data"_a, "size"_a, "device"_a = -1, "stream"_a = 0)
      .def("recv", &World::Recv, "peer"_a, "tag"_a, "data"_a, "size"_a, "device"_a = -1, "stream"_a = 0)
      .def("allocate", &World::Allocate, "nbytes"_a)
      .def("allocate_region", &World::AllocateRegion, "process_set"_a, "device"_a, "nbytes"_a)
      .def("use_jobs", &World::UseJobs)
      .def("next_job", &World::NextJob, "timeout_s"_a)
      .def("finish_job", &World::FinishJob, "id"_a, "error"_a = "")
      .def("describe", &World::DescribeWorld)
      .def("start_timeline", &World::StartTimeline, "path"_a, "mark_cycles"_a = false)
      .def("stop_timeline", &World::StopTimeline)
      .def("show", &World::Show, "name"_a, "began_ns"_a, "ended_ns"_a)
      .def("use_tuning", &World::UseTuning, "fusion_threshold"_a, "cycle_time_us"_a, "chunk_bytes"_a);
  hvd_python::BindArrays(m);
  hvd_python::BindMembers(m);
  hvd_python::BindPlainHandles(m);
  hvd_python::BindArrayCalls(m);
  hvd_python::BindArrivals(m);
  hvd_python::BindTensorReader(m);
  hvd_python::BindTensorMaker(m);
  hvd_python::BindGradientHomes(m);
  hvd_python::BindPlainTensors(m);
  hvd_python::BindExchange(m);
  hvd_python::BindGradientTable(m);
  hvd_python::BindCodecs(m);
}
