// Storage of expert rows for backward in pages of one pool per rank, instead of in buffers sized for the capacity
// (model.moe_paged_stash). The tensors of one forward have the same row counts and share pages; each has a fixed
// region of every page. Pages are allocated in forward and freed when backward has read the last of these tensors, in
// stream order (kernels/pages.h). A failed step does not free its pages; zero state() before the next step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pages.h"
#include "device/launch_point.h"
#include "moe/context.h"
#include "nn/saved.h"

namespace metroplex::moe {

class PagedStash : public std::enable_shared_from_this<PagedStash> {
 public:
  // `flag` [1] int32 is set when too few pages are free.
  PagedStash(const device::Target& target, at::Tensor flag);

  // Registers a layer whose forward saves `row_bytes` bytes per row; all layers must save the same number. Returns
  // its number for keep(), from 1.
  int join(std::string name, int64_t row_bytes);
  // Creates the pool after all layers have joined. even_pages: pages in use at one time if experts are evenly loaded.
  void make(const kernels::PageShape& shape, int64_t even_pages);

  // Saves the rows given by `counts` of each tensor [R, width], which are grouped by expert. Rows after the last
  // group are unspecified in the restored tensors.
  std::vector<nn::Saved> keep(const std::vector<at::Tensor>& rows, const at::Tensor& counts, int layer);

  const at::Tensor& state() const { return state_; }  // kernels::PageWord
  const at::Tensor& pool() const { return device_; }  // bytes
  int64_t host_bytes() const { return host_.defined() ? host_.numel() : 0; }

  // Reports the first layer for which pages were insufficient: "decoder.layers.1.mlp.experts: backward keeps rows on
  // 10 pages at one time, the stash has 5". NoRoom::factor covers device pages only, with the host's pages unchanged.
  NoRoom no_room() const;

 private:
  struct Lease;
  class Rows;

  void copy(const at::Tensor& rows, const Lease& lease, int64_t offset, bool to_pages) const;
  void give(const Lease& lease) const;

  device::Target target_;
  at::Tensor flag_, state_, device_, host_;
  kernels::PageShape shape_;
  int64_t row_bytes_ = 0, even_pages_ = 0;
  std::vector<std::string> layers_;
};

}  // namespace metroplex::moe
