// Internal to this module: .metadata of torch_dist, a pickle of torch.distributed.checkpoint.metadata.Metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/pieces.h"
#include "files/dtype.h"

namespace metroplex::mcore {

inline constexpr const char* kDataFile = "__0_0.distcp";

// A file of torch.save inside of kDataFile, under all of its names. A tensor is one chunk.
struct Item {
  std::vector<std::string> names;
  files::Dtype dtype = files::Dtype::kBool;  // kBool: bytes, not a tensor
  checkpoint::Dims shape = {};
  uint64_t offset = 0, bytes = 0;

  bool is_tensor() const { return dtype != files::Dtype::kBool; }
};
std::string pickle_items(const std::vector<Item>& items);

}  // namespace metroplex::mcore
