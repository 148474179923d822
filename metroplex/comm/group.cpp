#include "comm/group.h"

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/recording.h"

namespace metroplex::comm {

Group::Group() : name_("self"), ranks_{0} {}

Group::Group(std::string name, std::vector<int> ranks, int index, std::shared_ptr<GroupBackend> backend)
    : name_(std::move(name)), ranks_(std::move(ranks)), index_(index), backend_(std::move(backend)) {
  MPX_ASSERT(index_ >= 0 && index_ < size(), "group ", name_, ": index ", index_, " of ", size(), " ranks");
  MPX_ASSERT(size() == 1 || backend_, "group ", name_, " of ", size(), " ranks has no backend");
}

GroupBackend& Group::backend() const {
  MPX_ASSERT(backend_, "a group of one has no backend");
  return *backend_;
}

Group Group::recorded(cuda::Recorder& recorder) const {
  Group group = *this;
  if (!backend_) return group;
  recorder.joins(name_, ranks_);
  group.backend_ = make_recording_backend(name_, recorder, backend_);
  return group;
}

}  // namespace metroplex::comm
