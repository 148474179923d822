// A group of ranks as a value: copy it, hand it in, nothing is looked up. What it does is in collectives.h and p2p.h;
// a group of one does nothing there, so no caller asks whether it is parallel.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace metroplex::cuda {
class Recorder;  // cuda/launch_point.h
}

namespace metroplex::comm {

class GroupBackend;  // backends/backend.h

class Group {
 public:
  // A group of the calling rank alone.
  Group();
  // `ranks` are global, in group order; `index` is the calling rank's position among them.
  Group(std::string name, std::vector<int> ranks, int index, std::shared_ptr<GroupBackend> backend);

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }
  bool first() const { return index_ == 0; }
  bool last() const { return index_ + 1 == size(); }
  // Requires size() > 1.
  GroupBackend& backend() const;
  // The same group, whose calls `recorder` is told of (backends/recording.h). It outlives the group and its copies.
  Group recorded(cuda::Recorder& recorder) const;

 private:
  std::string name_;
  std::vector<int> ranks_;
  int index_ = 0;
  std::shared_ptr<GroupBackend> backend_;
};

}  // namespace metroplex::comm
