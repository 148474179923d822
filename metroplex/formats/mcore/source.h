// Checkpoints of Megatron-LM as a source of weights, in any of its formats and parallel layouts (contents.h). Files
// are memory-mapped, and only the requested regions are read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "config/config.h"
#include "files/file_system.h"
#include "mcore/contents.h"
#include "mcore/names.h"

namespace metroplex::mcore {

// Weights, buffers and, if stored, the state of AdamW. Throws base::Error with a list of all missing, misshapen and
// unknown tensors.
class Source final : public checkpoint::TensorSource {
 public:
  using Wanted = std::function<bool(const std::string& name)>;
  // `directory`: of one checkpoint (find_directory). `model` must be resolved; its vocabulary may be smaller than the
  // stored one, without the rows of Megatron's padding. Tensors for which `wanted` returns false are not provided.
  Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
         const Wanted& wanted = {});

  const Contents& contents() const { return contents_; }

 private:
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;
  void check_size(const config::Model& model) const;
  void add_tensor(const MappedTensor& tensor, const std::string& kind, std::vector<std::string>& problems);
  std::vector<Part> find_parts(const MappedTensor& tensor, const std::string& prefix) const;
  std::string shape_problem(const MappedTensor& tensor, const Part& part) const;
  void check_unknown(const std::vector<MappedTensor>& mapped, std::vector<std::string>& problems) const;
  const std::byte* data(const StoredTensor& tensor, const Chunk& chunk);

  files::FileSystem& disk_;
  Contents contents_;
  std::vector<std::vector<Part>> parts_;       // of tensors()
  std::map<std::string, files::Bytes> files_;  // of torch_dist, by path; mapped once
  std::map<const Chunk*, std::unique_ptr<pickle::TorchFile>> items_;
};

}  // namespace metroplex::mcore
