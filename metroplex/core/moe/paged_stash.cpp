#include "moe/paged_stash.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "device/launch_point.h"

namespace metroplex::moe {

namespace {

int32_t* words(const at::Tensor& x) { return static_cast<int32_t*>(x.mutable_data_ptr()); }
unsigned char* bytes(const at::Tensor& x) {
  return x.defined() ? static_cast<unsigned char*>(x.mutable_data_ptr()) : nullptr;
}
int64_t row_bytes_of(const at::Tensor& rows) { return rows.size(1) * static_cast<int64_t>(rows.element_size()); }

}  // namespace

// The tensors of one keep() share a lease.
struct PagedStash::Lease {
  at::Tensor words;
  size_t unread = 0;  // tensors that have not been restored
};

class PagedStash::Rows final : public nn::Saved::Source {
 public:
  Rows(std::shared_ptr<PagedStash> stash, std::shared_ptr<Lease> lease, const at::Tensor& rows, int64_t offset)
      : stash_(std::move(stash)),
        lease_(std::move(lease)),
        options_(rows.options().requires_grad(false)),
        sizes_(rows.sizes().vec()),
        offset_(offset) {}
  at::Tensor get() override {
    if (!lease_) return value_;
    const at::NoGradGuard no_grad;
    value_ = at::empty(sizes_, options_);
    stash_->copy(value_, *lease_, offset_, false);
    if (--lease_->unread == 0) stash_->give(*lease_);
    lease_.reset();
    return value_;
  }

 private:
  std::shared_ptr<PagedStash> stash_;
  std::shared_ptr<Lease> lease_;  // null after the rows have been restored
  at::TensorOptions options_;
  std::vector<int64_t> sizes_;
  int64_t offset_;  // within a page
  at::Tensor value_;
};

PagedStash::PagedStash(const device::Target& target, at::Tensor flag) : target_(target), flag_(std::move(flag)) {}

int PagedStash::join(std::string name, int64_t row_bytes) {
  MPX_ASSERT(layers_.empty() || row_bytes_ == row_bytes, name, " keeps ", row_bytes, " bytes of a row, other layers ",
             row_bytes_);
  MPX_ASSERT(!state_.defined(), name, " joins a stash that is in use");
  row_bytes_ = row_bytes;
  layers_.push_back(std::move(name));
  return static_cast<int>(layers_.size());
}

void PagedStash::make(const kernels::PageShape& shape, int64_t even_pages) {
  const at::NoGradGuard no_grad;
  shape_ = shape;
  even_pages_ = even_pages;
  const at::TensorOptions here = at::TensorOptions().device(target_.memory());
  const int64_t page = shape.page_rows * row_bytes_;
  state_ = at::zeros({kernels::kPageWords + shape.pages()}, here.dtype(at::kInt));
  device_ = at::empty({shape.device_pages * page}, here.dtype(at::kByte));
  if (shape.host_pages == 0) return;
  const bool pinned = target_.gpu() && !target_.meta;
  host_ = at::empty(
      {shape.host_pages * page},
      at::TensorOptions().dtype(at::kByte).device(target_.meta ? at::kMeta : at::kCPU).pinned_memory(pinned));
}

std::vector<nn::Saved> PagedStash::keep(const std::vector<at::Tensor>& rows, const at::Tensor& counts, int layer) {
  MPX_ASSERT(state_.defined(), "a stash without a pool");
  const at::NoGradGuard no_grad;
  const int64_t room = rows.at(0).size(0);
  const auto lease = std::make_shared<Lease>();
  lease->words = at::empty({kernels::lease_words(room, shape_)}, state_.options());
  lease->unread = rows.size();
  kernels::PageTake take;
  take.counts = static_cast<const int64_t*>(counts.const_data_ptr());
  take.groups = counts.numel(), take.rows = room, take.layer = layer;
  take.state = words(state_), take.lease = words(lease->words), take.flag = words(flag_);
  device::launch(target_, {"take_pages", {&counts, &state_}, {&state_, &lease->words, &flag_}}, kernels::take_pages,
                 kernels::take_pages_cuda, take, shape_);
  std::vector<nn::Saved> kept;
  int64_t offset = 0;
  for (const at::Tensor& x : rows) {
    MPX_ASSERT(x.is_contiguous() && x.size(0) == room, "rows of one forward in different buffers");
    copy(x, *lease, offset, true);
    kept.emplace_back(std::make_shared<Rows>(shared_from_this(), lease, x, offset));
    offset += shape_.page_rows * row_bytes_of(x);
  }
  MPX_ASSERT(offset == shape_.page_rows * row_bytes_, "a page holds ", shape_.page_rows * row_bytes_, " bytes, not ",
             offset);
  return kept;
}

void PagedStash::copy(const at::Tensor& rows, const Lease& lease, int64_t offset, bool to_pages) const {
  const kernels::PagedRows pages{
      words(lease.words),           bytes(device_), bytes(host_), rows.size(0), row_bytes_of(rows), offset,
      shape_.page_rows * row_bytes_};
  if (to_pages) {
    device::launch(target_, {"rows_to_pages", {&rows, &lease.words}, {&device_, &host_}}, kernels::rows_to_pages,
                   kernels::rows_to_pages_cuda, static_cast<const void*>(rows.const_data_ptr()), pages, shape_);
  } else {
    device::launch(target_, {"rows_from_pages", {&lease.words, &device_, &host_}, {&rows}}, kernels::rows_from_pages,
                   kernels::rows_from_pages_cuda, pages, rows.mutable_data_ptr(), shape_);
  }
}

void PagedStash::give(const Lease& lease) const {
  device::launch(target_, {"give_pages", {&lease.words, &state_}, {&state_}}, kernels::give_pages,
                 kernels::give_pages_cuda, static_cast<const int32_t*>(words(lease.words)), words(state_), shape_);
}

NoRoom PagedStash::no_room() const {
  if (!state_.defined()) return {};
  const at::Tensor here = device::read_on_host(target_, state_.narrow(0, 0, kernels::kPageWords));
  const auto* const said = here.const_data_ptr<int32_t>();
  const int32_t layer = said[kernels::kShortLayer];
  if (layer == 0) return {};
  const int64_t wanted = said[kernels::kMostWanted];
  return {base::concat(layers_.at(static_cast<size_t>(layer - 1)), ": backward stores rows on ", wanted,
                       " pages at one time, the stash has ", shape_.pages()),
          static_cast<double>(wanted - shape_.host_pages) / static_cast<double>(std::max<int64_t>(even_pages_, 1))};
}

}  // namespace metroplex::moe
