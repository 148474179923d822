// A source of the tensors that a run loads: one of our checkpoints (load.h), or a reader of another format that lists
// which of our tensors it has. A source may make a tensor out of several of its own, joined or transposed: a region
// names elements of our whole tensor, not their place in the source.
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

// The elements [begin, end) of a box of a tensor, and where to store them.
struct Target {
  std::string name, kind;
  std::vector<int64_t> global_shape, offset, size;
  files::Dtype dtype = files::Dtype::kF32;
  void* data = nullptr;         // contiguous, host memory
  int64_t begin = 0, end = -1;  // -1: to the end of the box
};

// Not thread-safe; each rank has its own.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const std::string& directory() const { return directory_; }  // for messages
  const std::vector<files::TensorForm>& tensors() const { return tensors_; }
  // nullptr where there is no such tensor.
  const files::TensorForm* find(const std::string& name, const std::string& kind) const;

  // Throws base::Error naming the tensor when it is missing, has another shape or dtype, or cannot be read;
  // target.data is then partly written.
  void fill(const Target& target);

  // Marks a tensor that is deliberately not read, as fill() marks one that it reads. No such tensor: nothing happens.
  void mark_read(const std::string& name, const std::string& kind);
  // Collective: the labels of all tensors that no rank has read or marked.
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
