// A group of ranks as a value: copy it, hand it in, nothing is looked up. What it does is in collectives.h;
// a group of one does nothing there, so no caller asks whether it is parallel.
#pragma once

#include <compare>
#include <memory>
#include <string>
#include <vector>

namespace metroplex::cuda {
class Recorder;  // cuda/launch_point.h
}

namespace metroplex::comm {

class GroupBackend;  // backends/backend.h

// What a group is used for. Groups of equal members and equal purpose share a communicator; groups of different
// purposes never do, so their operations may be under way beside each other.
enum class Purpose {
  run,         // what ranks agree on before the first step and between steps
  layers,      // collectives inside a layer: tensor and context parallelism, sums of a router's losses
  experts,     // rows of tokens to experts and back
  clones,      // weights of experts to their clones, and gradients back
  gradients,   // gradients, sharded parameters, norms, and what an optimizer puts together
  pipeline,    // messages between stages, which each pair of ranks issues in an order of its own
  batch,       // the broadcast of data
  checkpoint,  // saves and loads
};
const char* to_string(Purpose purpose);

// What a group is made by, the same on all its members. A rank that has several groups of one name and purpose shares
// at most itself between any two of them.
struct GroupSpec {
  std::string name;
  Purpose purpose = Purpose::run;
  std::vector<int> ranks;  // global, in group order
  bool nvshmem = false;    // over NCCL: exchange_rows by NVSHMEM; of a group of all ranks
  friend auto operator<=>(const GroupSpec&, const GroupSpec&) = default;
};

class Group {
 public:
  // A group of the calling rank alone.
  Group();
  // `index`: the calling rank's position among the ranks.
  Group(GroupSpec spec, int index, std::shared_ptr<GroupBackend> backend);

  const std::string& name() const { return spec_.name; }
  Purpose purpose() const { return spec_.purpose; }
  const std::vector<int>& ranks() const { return spec_.ranks; }
  int size() const { return static_cast<int>(spec_.ranks.size()); }
  int index() const { return index_; }
  bool first() const { return index_ == 0; }
  bool last() const { return index_ + 1 == size(); }
  // Requires size() > 1.
  GroupBackend& backend() const;
  // The same group, whose calls `recorder` is told of (backends/recording.h). It outlives the group and its copies.
  Group recorded(cuda::Recorder& recorder) const;

 private:
  GroupSpec spec_;
  int index_ = 0;
  std::shared_ptr<GroupBackend> backend_;
};

}  // namespace metroplex::comm
