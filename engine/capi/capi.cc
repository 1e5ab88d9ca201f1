// SPDX-License-Identifier: Apache-2.0
// The C API over World: checks and converts arguments and catches all exceptions.
#include <hvd/engine.h>

#include <algorithm>
#include <cstddef>

#include "capi/codecs.h"
#include "capi/guard.h"
#include "capi/operations.h"
#include "core/world.h"
#include "memory/output_pool.h"

struct hvd_world {
  std::unique_ptr<hvd::World> world;
  std::string description;
};

namespace {

using hvd::Code;
using hvd::Guard;
using hvd::Status;

void Keep(const char* text, std::string* kept) { *kept = text ? text : ""; }
template <typename Number>
void Keep(Number value, Number* kept) {
  *kept = value;
}

// Convert settings. An older client's struct is shorter; fields that it does not have keep their defaults.
hvd::Settings Convert(const hvd_settings& in) {
  hvd::Settings out;
#define HVD_FIELD(type, name, value) \
  if (in.size >= offsetof(hvd_settings, name) + sizeof in.name) Keep(in.name, &out.name);
  HVD_SETTINGS(HVD_FIELD)
#undef HVD_FIELD
  out.slot_bytes = std::max<uint64_t>(out.slot_bytes / 4096 * 4096, 4096);
  out.slots = std::max<uint64_t>(out.slots, 2);
  out.tcp_streams = std::max<uint64_t>(out.tcp_streams, 1);
  return out;
}

void DefaultSettings(hvd_settings* out) {
#define HVD_FIELD(type, name, value) , value
  *out = {sizeof *out HVD_SETTINGS(HVD_FIELD)};
#undef HVD_FIELD
}

hvd_world* Open(const hvd_identity* identity, const hvd_settings* settings, hvd_status* status) {
  return Guard<hvd_world*>(status, nullptr, [&]() -> hvd_world* {
    hvd::Identity me;
    me.rank = identity->rank;
    me.size = identity->world_size;
    me.host = identity->host;
    me.listen_address = identity->listen_address;
    me.world_id = identity->world_id;
    me.generation = identity->generation;
    me.secret.assign(reinterpret_cast<const char*>(identity->secret), identity->secret_size);
    Status why;
    auto world = hvd::World::Open(me, Convert(*settings), &why);
    Fill(why, status);
    if (!world) return nullptr;
    return new hvd_world{std::move(world), {}};
  });
}

int32_t TcpPort(hvd_world* world) { return world->world->tcp_port(); }
const char* LocalSocket(hvd_world* world) { return world->world->local_socket().c_str(); }

int32_t Connect(hvd_world* world, const hvd_peer* peers, int32_t count, double timeout_s, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    std::vector<hvd::Peer> all;
    for (int32_t i = 0; i < count; ++i) {
      const hvd_peer& peer = peers[i];
      all.push_back({peer.rank, peer.host, peer.address, peer.port, peer.local_socket, peer.machine});
    }
    const Status result = world->world->Connect(all, timeout_s);
    Fill(result, status);
    return static_cast<int32_t>(result.code);
  });
}

void Close(hvd_world* world) {
  Guard<int>(nullptr, 0, [&] {
    world->world->Close();
    return 0;
  });
}

void Destroy(hvd_world* world) {
  Close(world);
  delete world;
}

bool IsUsable(const hvd_world* world, hvd_status* status) {
  const Status usable = world->world->Usable();
  if (!usable.ok()) Fill(usable, status);
  return usable.ok();
}

int64_t Submit(hvd_world* world, int32_t process_set, const hvd_op* ops, int32_t count, const char* group,
               uint32_t flags, void (*on_done)(void*, const hvd_status*), void* context, hvd_status* status) {
  return Guard<int64_t>(status, 0, [&]() -> int64_t {
    if (!IsUsable(world, status)) return 0;
    if (count < 1) {
      Fill(Status::Invalid("nothing to submit"), status);
      return 0;
    }
    for (int32_t i = 0; i < count; ++i) {
      if (Status bad = hvd::CheckOp(hvd::OpAt(ops, i)); !bad.ok()) {
        Fill(bad, status);
        return 0;
      }
    }
    auto operations = world->world->NewOperations(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      const hvd_op& op = hvd::OpAt(ops, i);
      hvd::Operation* const operation = operations[static_cast<size_t>(i)].get();
      hvd::ConvertOp(op, *world->world, process_set, group, count, operation);
      if (hvd::DeviceOf(op) < 0 || !MovesTensor(operation->request.kind)) continue;
      operation->stream = hvd::StreamOf(op);
      operation->prompt = (flags & HVD_PROMPT) != 0;
      const bool as_before = i > 0 && hvd::AreOnOneStream(hvd::OpAt(ops, i - 1), op);
      operation->ready = as_before ? operations[static_cast<size_t>(i) - 1]->ready
                                   : world->world->devices().MarkReady(op.device, operation->stream);
    }
    std::function<void(const hvd::Handle&)> callback;
    if (on_done) {
      callback = [on_done, context](const hvd::Handle& handle) {
        hvd_status outcome;
        Fill(handle.status, &outcome);
        on_done(context, &outcome);
      };
    }
    Status why;
    const int64_t id = world->world->Submit(std::move(operations), flags & HVD_WILL_WAIT, std::move(callback), &why);
    if (!id) Fill(why, status);
    return id;
  });
}

int32_t Poll(hvd_world* world, int64_t id) {
  world->world->NoteQuestion();
  auto handle = world->world->Find(id);
  return handle ? handle->done.load(std::memory_order_acquire) : -1;
}

int32_t Wait(hvd_world* world, int64_t id, int32_t timeout_ms, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    Status why;
    const Code code = world->world->Wait(id, timeout_ms, &why);
    if (code != Code::kOk && code != Code::kInProgress) Fill(why, status);
    return static_cast<int32_t>(code);
  });
}

int32_t Finish(hvd_world* world, int64_t id, int32_t timeout_ms, hvd_status* status) {
  world->world->NoteQuestion();
  if (const auto handle = world->world->TakeDone(id)) {
    if (!handle->status.ok()) Fill(handle->status, status);
    return static_cast<int32_t>(handle->status.code);
  }
  if (timeout_ms == 0 && world->world->Find(id)) return HVD_IN_PROGRESS;
  const int32_t code = Wait(world, id, timeout_ms, status);
  if (code != HVD_IN_PROGRESS) world->world->Release(id);
  return code;
}

// Return null if there is no such output or the handle is not done.
hvd::Handle::Output* OutputAt(const std::shared_ptr<hvd::Handle>& handle, int32_t index) {
  const bool there = handle && handle->done.load(std::memory_order_acquire) && index >= 0 &&
                     static_cast<size_t>(index) < handle->outputs.size();
  return there ? &handle->outputs[static_cast<size_t>(index)] : nullptr;
}

void* TakeOutput(hvd_world* world, int64_t id, int32_t index, int64_t* rows, uint64_t* bytes) {
  const auto handle = world->world->Find(id);
  hvd::Handle::Output* const output = OutputAt(handle, index);
  if (!output) return nullptr;
  if (rows) *rows = output->rows;
  if (bytes) *bytes = output->bytes;
  hvd::HandOverOutput(output->data);
  return std::exchange(output->data, nullptr);
}

int32_t ReceivedSplits(hvd_world* world, int64_t id, int64_t* rows, int32_t capacity) {
  auto handle = world->world->Find(id);
  if (!handle || !handle->done) return 0;
  const size_t count = std::min<size_t>(handle->received_splits.size(), static_cast<size_t>(capacity));
  std::copy_n(handle->received_splits.begin(), count, rows);
  return static_cast<int32_t>(count);
}

int64_t Value(hvd_world* world, int64_t id) {
  auto handle = world->world->Find(id);
  return handle ? handle->value : -1;
}

void Release(hvd_world* world, int64_t id) { world->world->Release(id); }
void FreeBuffer(void* data) { hvd::FreeOutput(data); }

int64_t SubmitTransfer(hvd_world* world, hvd::OpKind kind, int32_t peer, int64_t tag, const void* from, void* to,
                       uint64_t size, int32_t device, uint64_t stream, hvd_status* status) {
  return Guard<int64_t>(status, 0, [&]() -> int64_t {
    if (!IsUsable(world, status)) return 0;
    if (peer < 0 || peer >= world->world->size()) {
      Fill(Status::Invalid("there is no rank " + std::to_string(peer)), status);
      return 0;
    }
    static std::atomic<uint64_t> count{0};  // makes names differ
    auto operation = std::make_unique<hvd::Operation>();
    operation->request.kind = kind;
    operation->request.dtype = hvd::DType::kUInt8;
    operation->request.root = peer;
    operation->request.shape = {static_cast<int64_t>(size)};
    operation->request.splits = {tag};
    operation->request.name = "message." + std::to_string(count.fetch_add(1));
    operation->input = static_cast<const std::byte*>(from);
    operation->output = static_cast<std::byte*>(to);
    operation->request.device = device;
    if (device >= 0) operation->ready = world->world->devices().MarkReady(device, stream);
    std::vector<std::unique_ptr<hvd::Operation>> operations;
    operations.push_back(std::move(operation));
    Status why;
    const int64_t id = world->world->Submit(std::move(operations), false, nullptr, &why);
    if (!id) Fill(why, status);
    return id;
  });
}

int64_t Send(hvd_world* world, int32_t peer, int64_t tag, const void* data, uint64_t size, int32_t device,
             uint64_t stream, hvd_status* status) {
  return SubmitTransfer(world, hvd::OpKind::kSend, peer, tag, data, nullptr, size, device, stream, status);
}

int64_t Recv(hvd_world* world, int32_t peer, int64_t tag, void* data, uint64_t size, int32_t device, uint64_t stream,
             hvd_status* status) {
  return SubmitTransfer(world, hvd::OpKind::kReceive, peer, tag, nullptr, data, size, device, stream, status);
}

const char* Describe(hvd_world* world) {
  world->description = world->world->Describe();
  return world->description.c_str();
}

int32_t StartTimeline(hvd_world* world, const char* path, int32_t mark_cycles, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    const Status result = world->world->StartTimeline(path, mark_cycles != 0);
    Fill(result, status);
    return static_cast<int32_t>(result.code);
  });
}

int32_t StopTimeline(hvd_world* world, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    const Status result = world->world->StopTimeline();
    Fill(result, status);
    return static_cast<int32_t>(result.code);
  });
}

int32_t Allocate(hvd_world* world, uint64_t bytes, hvd_buffer* out, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    Status why;
    std::unique_ptr<hvd::Buffer> buffer = world->world->Allocate(bytes, &why);
    Fill(why, status);
    if (!buffer) return static_cast<int32_t>(why.code);
    out->shared = buffer->shared();
    out->data = buffer->data();
    out->owner = buffer.release();
    return static_cast<int32_t>(HVD_OK);
  });
}

void ReleaseBuffer(hvd_buffer* buffer) {
  delete static_cast<hvd::Buffer*>(std::exchange(buffer->owner, nullptr));
  buffer->data = nullptr;
}

void TellStack(hvd_world* world, uint64_t (*tell)(void*, char*, uint64_t), void* context) {
  world->world->UseStackTeller({tell, context});
}

void TellBlock(hvd_world* world, uint64_t (*tell)(void*, uint64_t, char*, uint64_t), void* context) {
  world->world->UseBlockTeller({tell, context});
}

void Block(hvd_world* world, int64_t id, uint64_t thread) {
  Guard<int>(nullptr, 0, [&] {
    world->world->Block(id, thread);
    return 0;
  });
}

void Unblock(hvd_world* world, uint64_t thread) { world->world->Unblock(thread); }

void* AllocateLendable(hvd_world* world, uint64_t bytes) { return world->world->AllocateLendable(bytes); }

int32_t Lend(hvd_world* world, void* data) { return world->world->Lend(data); }

int32_t TakeBack(void* data) { return hvd::TakeBackOutput(data); }

void UseJobs(hvd_world* world) { world->world->UseForeignJobs(); }

void Fill(hvd::ForeignJob& job, hvd_job* out) {
  out->kind = static_cast<int32_t>(job.kind);
  out->dtype = static_cast<int32_t>(job.dtype);
  out->reduce_op = static_cast<int32_t>(job.op);
  out->root = job.root;
  out->group = job.group;
  out->members = static_cast<int32_t>(job.members.size());
  out->in_place = job.in_bytes == 0;
  out->id = job.id;
  out->ranks = job.members.data();
  out->input = job.begin();
  out->input_bytes = job.in_bytes ? job.in_bytes : job.out_bytes;
  out->output = job.out.data.get();
  out->output_bytes = job.out_bytes;
  out->sent = job.sent.data();
  out->received = job.received.data();
}

int32_t NextJob(hvd_world* world, uint32_t timeout_us, hvd_job* out, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&]() -> int32_t {
    hvd::ForeignJobs* jobs = world->world->foreign_jobs();
    std::shared_ptr<hvd::ForeignJob> job;
    const auto outcome = jobs ? jobs->Next(std::chrono::microseconds(timeout_us), &job)  //
                              : hvd::ForeignJobs::Outcome::kClosed;
    if (outcome == hvd::ForeignJobs::Outcome::kClosed) return HVD_FAILED;
    if (outcome == hvd::ForeignJobs::Outcome::kNothingYet) return HVD_IN_PROGRESS;
    Fill(*job, out);
    return HVD_OK;
  });
}

void FinishJob(hvd_world* world, int64_t id, const char* error) {
  Guard<int>(nullptr, 0, [&] {
    if (hvd::ForeignJobs* jobs = world->world->foreign_jobs()) jobs->Finish(id, error ? error : "");
    return 0;
  });
}

void Show(hvd_world* world, const char* name, int64_t began_ns, int64_t ended_ns) {
  Guard<int>(nullptr, 0, [&] {
    world->world->ShowInTimeline(name, began_ns, ended_ns);
    return 0;
  });
}

int32_t LetWait(hvd_world* world, int32_t device, uint64_t stream, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    world->world->devices().LetWait(device, stream);
    const Status closed = world->world->closed();
    Fill(closed, status);
    return static_cast<int32_t>(closed.ok() ? HVD_OK : HVD_FAILED);
  });
}

int64_t OutputRows(hvd_world* world, int64_t id, int32_t index) {
  const auto handle = world->world->Find(id);
  const hvd::Handle::Output* const output = OutputAt(handle, index);
  return output ? output->rows : -1;
}

int32_t CopyOutput(hvd_world* world, int64_t id, int32_t index, void* to, uint64_t stream, hvd_status* status) {
  return Guard<int32_t>(status, HVD_FAILED, [&] {
    const auto handle = world->world->Find(id);
    hvd::Handle::Output* const output = OutputAt(handle, index);
    if (output && output->bytes == 0) return static_cast<int32_t>(HVD_OK);
    if (!output || !output->block.data) {
      Fill(Status::Invalid("this handle has no such output on a device, or it has already been copied"), status);
      return static_cast<int32_t>(HVD_INVALID);
    }
    world->world->devices().CopyOutput(std::exchange(output->block, {}), reinterpret_cast<hvd::CudaAddress>(to),
                                       output->bytes, stream);
    return static_cast<int32_t>(HVD_OK);
  });
}

int64_t PromptStream(hvd_world* world, int32_t device, int32_t kind, int32_t reduce_op, int32_t dtype,
                     hvd_status* status) {
  return Guard<int64_t>(status, 0, [&] {
    return world->world->PromptStream(device, static_cast<hvd::OpKind>(kind), static_cast<hvd::ReduceOp>(reduce_op),
                                      static_cast<hvd::DType>(dtype));
  });
}

void* AllocateRegion(hvd_world* world, int32_t process_set, int32_t device, uint64_t bytes, uint64_t* address,
                     hvd_status* status) {
  return Guard<void*>(status, nullptr, [&]() -> void* {
    Status why;
    std::shared_ptr<hvd::DeviceRegion> region = world->world->AllocateRegion(process_set, device, bytes, &why);
    Fill(why, status);
    if (!region) return nullptr;
    *address = region->address();
    return new std::shared_ptr<hvd::DeviceRegion>(std::move(region));
  });
}

void FreeRegion(void* region) { delete static_cast<std::shared_ptr<hvd::DeviceRegion>*>(region); }

int32_t Leave(hvd_world* world, int32_t timeout_ms) {
  return world->world->Leave(timeout_ms) ? HVD_OK : HVD_IN_PROGRESS;
}

int32_t Fail(hvd_world* world, const char* why) {
  return Guard<int32_t>(nullptr, 0, [&] { return static_cast<int32_t>(world->world->Fail(why)); });
}

int32_t SharesGpus(hvd_world* world, int32_t process_set) { return world->world->devices().sharing().Of(process_set); }

void UseTuning(hvd_world* world, uint64_t fusion_threshold, uint64_t cycle_time_us, uint64_t chunk_bytes) {
  hvd::Tuning tuning;
  tuning.fusion_threshold = fusion_threshold;
  tuning.cycle_time_us = cycle_time_us;
  tuning.chunk_bytes = chunk_bytes;
  world->world->UseTuning(tuning);
}

const hvd_api kApi = {HVD_ABI_VERSION,
                      sizeof(hvd_api),
                      DefaultSettings,
                      Open,
                      TcpPort,
                      LocalSocket,
                      Connect,
                      Close,
                      Destroy,
                      Submit,
                      Poll,
                      Wait,
                      TakeOutput,
                      ReceivedSplits,
                      Value,
                      Release,
                      FreeBuffer,
                      Send,
                      Recv,
                      Describe,
                      StartTimeline,
                      StopTimeline,
                      Allocate,
                      ReleaseBuffer,
                      TellStack,
                      Finish,
                      AllocateLendable,
                      Lend,
                      TakeBack,
                      TellBlock,
                      Block,
                      Unblock,
                      UseJobs,
                      NextJob,
                      FinishJob,
                      Show,
                      UseTuning,
                      LetWait,
                      OutputRows,
                      CopyOutput,
                      PromptStream,
                      AllocateRegion,
                      FreeRegion,
                      Leave,
                      SharesGpus,
                      Fail,
                      &hvd::kCodecsApi};

}  // namespace

const hvd_api* hvd_get_api(uint32_t version) { return version == HVD_ABI_VERSION ? &kApi : nullptr; }
