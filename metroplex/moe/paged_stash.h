// What backward keeps of the rows of experts, in pages of one pool of a rank instead of in buffers with room for more
// (model.moe_paged_stash). All rows of a layer's forward have the same counts and lie in the same pages, a part of
// each page for each tensor. Pages are taken in forward and given back when backward has read the last of these
// tensors, in the order of the stream (cuda/kernels/pages.h). A step that failed gives nothing back: who begins one
// zeroes state().
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/pages.h"
#include "cuda/launch_point.h"
#include "moe/context.h"
#include "nn/saved.h"

namespace metroplex::moe {

class PagedStash : public std::enable_shared_from_this<PagedStash> {
 public:
  // `flag` [1] int32 is raised where too few pages are free.
  PagedStash(const cuda::Target& target, at::Tensor flag);

  // A layer whose forward keeps so many bytes of a row: as many as all others. Its number for keep(), from 1.
  int join(std::string name, int64_t row_bytes);
  // Makes the pool, once all layers have joined. even_pages: what is kept at one time when experts are loaded evenly.
  void make(const cuda::kernels::PageShape& shape, int64_t even_pages);

  // Of each tensor [R, width], whose rows lie one expert behind the other, those that `counts` say. Rows behind them
  // are unspecified in what comes back.
  std::vector<nn::Saved> keep(const std::vector<at::Tensor>& rows, const at::Tensor& counts, int layer);

  const at::Tensor& state() const { return state_; }  // cuda::kernels::PageWord
  const at::Tensor& pool() const { return device_; }  // bytes
  int64_t host_bytes() const { return host_.defined() ? host_.numel() : 0; }

  // "decoder.layers.1.mlp.experts: backward keeps rows on 10 pages at one time, the stash has 5": of the layer that
  // found too few first. NoRoom::factor is for pages of the device, beside those that the host has.
  NoRoom no_room() const;

 private:
  struct Lease;
  class Rows;

  void copy(const at::Tensor& rows, const Lease& lease, int64_t offset, bool to_pages) const;
  void give(const Lease& lease) const;

  cuda::Target target_;
  at::Tensor flag_, state_, device_, host_;
  cuda::kernels::PageShape shape_;
  int64_t row_bytes_ = 0, even_pages_ = 0;
  std::vector<std::string> layers_;
};

}  // namespace metroplex::moe
