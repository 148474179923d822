// A group of ranks as a value type. Collectives are in collectives.h. They are no-ops in a group of one, so callers
// need no special case for it.
#pragma once

#include <compare>
#include <memory>
#include <string>
#include <vector>

namespace metroplex::device {
class Recorder;  // device/launch_point.h
}

namespace metroplex::comm {

class GroupBackend;  // backends/backend.h

// Purpose of a group. Groups with equal members and equal purpose share a communicator. Groups with different
// purposes never share one, so their operations may overlap.
enum class Purpose {
  run,         // agreement between ranks before the first step and between steps
  layers,      // collectives in a layer: tensor and context parallelism, router loss sums
  experts,     // token rows to experts and back
  replicas,    // expert weights to their replicas, and gradients back
  gradients,   // gradients, sharded parameters, norms, optimizer all-gathers
  pipeline,    // messages between stages; each pair of ranks issues them in its own order
  batch,       // broadcast of data
  checkpoint,  // saves and loads
};
const char* to_string(Purpose purpose);

// Identifies a group; equal on all its members. If a rank has several groups with one name and purpose, any two of
// them have at most this rank in common.
struct GroupSpec {
  std::string name;
  Purpose purpose = Purpose::run;
  std::vector<int> ranks;  // global, in group order
  friend auto operator<=>(const GroupSpec&, const GroupSpec&) = default;
};

class Group {
 public:
  // Creates a group that contains only the calling rank.
  Group();
  // `index` is the position of the calling rank in spec.ranks.
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
  // Returns the same group with every call reported to `recorder` (backends/recording.h). `recorder` must outlive the
  // group and its copies.
  Group recorded(device::Recorder& recorder) const;

 private:
  GroupSpec spec_;
  int index_ = 0;
  std::shared_ptr<GroupBackend> backend_;
};

}  // namespace metroplex::comm
