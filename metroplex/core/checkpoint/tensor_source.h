// Source of the tensors that a run loads: a checkpoint (load.h), or a reader of another format that lists tensors
// under Metroplex names. A source may build a tensor from several of its own by concatenation or transposition. A
// region refers to elements of the resulting tensor, not to positions in the source.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/pieces.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {

// The elements [begin, end) of a box of a tensor, and their destination.
struct Target {
  std::string name, kind;
  std::vector<int64_t> global_shape, offset, size;
  files::Dtype dtype = files::Dtype::kF32;
  void* data = nullptr;         // contiguous host memory
  int64_t begin = 0, end = -1;  // -1: to the end of the box
};

// Not thread-safe; each rank has its own.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const std::string& directory() const { return directory_; }  // for messages
  const std::vector<files::TensorForm>& tensors() const { return tensors_; }
  // Returns nullptr if there is no such tensor.
  const files::TensorForm* find(const std::string& name, const std::string& kind) const;

  // Throws base::Error with the tensor name if it is missing, has another shape or dtype, or cannot be read.
  // target.data may then be partially written.
  void fill(const Target& target);

  // Marks a tensor as read although it is skipped deliberately. No-op if there is no such tensor.
  void mark_read(const std::string& name, const std::string& kind);
  // Collective: returns the labels of all tensors that no rank has read or marked.
  std::vector<std::string> unread(Exchange& exchange) const;

 protected:
  explicit TensorSource(std::string directory) : directory_(std::move(directory)) {}
  void add(files::TensorForm tensor);

 private:
  // Copies the elements of `region` of tensors()[tensor] to `data`, contiguously.
  virtual void read(size_t tensor, const Piece& region, void* data) = 0;

  std::string directory_;
  std::vector<files::TensorForm> tensors_;
  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<bool> read_;  // read or marked
};

}  // namespace metroplex::checkpoint
