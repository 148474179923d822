#include "comm/group.h"

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/recording.h"

namespace metroplex::comm {

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::run:
      return "run";
    case Purpose::layers:
      return "layers";
    case Purpose::experts:
      return "experts";
    case Purpose::replicas:
      return "clones";
    case Purpose::gradients:
      return "gradients";
    case Purpose::pipeline:
      return "pipeline";
    case Purpose::batch:
      return "batch";
    case Purpose::checkpoint:
      return "checkpoint";
  }
  return "";
}

Group::Group() : spec_{"self", Purpose::run, {0}} {}

Group::Group(GroupSpec spec, int index, std::shared_ptr<GroupBackend> backend)
    : spec_(std::move(spec)), index_(index), backend_(std::move(backend)) {
  MPX_ASSERT(index_ >= 0 && index_ < size(), "group ", name(), ": index ", index_, " of ", size(), " ranks");
  MPX_ASSERT(size() == 1 || backend_, "group ", name(), " of ", size(), " ranks has no backend");
}

GroupBackend& Group::backend() const {
  MPX_ASSERT(backend_, "a group of one rank has no backend");
  return *backend_;
}

Group Group::recorded(device::Recorder& recorder) const {
  Group group = *this;
  if (!backend_) return group;
  recorder.joins(name(), to_string(purpose()), ranks());
  group.backend_ = make_recording_backend(name(), recorder, backend_);
  return group;
}

}  // namespace metroplex::comm
