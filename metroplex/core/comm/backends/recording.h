// Backends that report every call to a Recorder: one forwards to another backend, the other (mirror) simulates a
// single rank.
#pragma once

#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "device/launch_point.h"

namespace metroplex::comm {

// Operations have the names of the functions of GroupBackend, and `group` as their group. All except barrier and wait
// list their tensors as reads and writes. An asynchronous call is recorded as two operations: its start, and "wait",
// after which its outputs may be read. `recorder` must outlive the backend and all operations in flight.
std::shared_ptr<GroupBackend> make_recording_backend(std::string group, device::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner);
// The same, cheaper, for a recorder that runs each operation once, inside Recorder::run, and needs no tensors of a
// "wait".
std::shared_ptr<GroupBackend> make_observing_backend(std::string group, device::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner);

// A rank without peers: every other member is assumed to contribute the same data. It allows constructing one rank
// of any world, for example to measure its memory. No data moves and no sums are computed. `recorder` may be null;
// it receives every call of the group and its "wait".
std::shared_ptr<GroupBackend> make_mirror_backend(std::string group, int size, device::Recorder* recorder);

}  // namespace metroplex::comm
