#include <ATen/Parallel.h>

#include <cstring>

#include "kernels/pages.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kTaskBytes = 1 << 18;

// Calls body(first row, rows) for the leased rows of each page.
template <class Body>
void each_page(const PagedRows& pages, const PageShape& shape, const Body& body) {
  const int64_t rows = pages.leased(), page_bytes = shape.page_rows * pages.width;
  at::parallel_for(0, shape.pages_of(rows), 1 + kTaskBytes / (page_bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * shape.page_rows; row < std::min(rows, end * shape.page_rows); row += shape.page_rows)
      body(row, std::min(shape.page_rows, rows - row));
  });
}

}  // namespace

void take_pages(const PageTake& take, const PageShape& shape) {
  const PagesTaken taken = pages_to_take(take, shape);
  int32_t* const state = take.state;
  for (int64_t i = 0; i < taken.on_device + taken.on_host; ++i) {
    const int64_t place = place_of_page(i, taken.on_device, state[kTakenPages], state[kTakenHostPages], shape);
    take.lease[kLeaseWords + i] = state[kPageWords + place] + static_cast<int32_t>(place);
  }
  take.lease[kLeaseRows] = taken.rows;
  take.lease[kLeaseWanted] = taken.wanted;
  take.lease[kLeaseOnHost] = taken.on_host;
  state[kTakenPages] += taken.on_device;
  state[kTakenHostPages] += taken.on_host;
  state[kWantedPages] += taken.wanted;
  state[kMostWanted] = std::max(state[kMostWanted], state[kWantedPages]);
  if (taken.on_device + taken.on_host == taken.wanted) return;
  *take.flag = 1;
  if (state[kShortLayer] == 0) state[kShortLayer] = take.layer;
}

void give_pages(const int32_t* lease, int32_t* state, const PageShape& shape) {
  const auto pages = static_cast<int32_t>(shape.pages_of(lease[kLeaseRows]));
  const int32_t on_device = pages - lease[kLeaseOnHost];
  state[kTakenPages] -= on_device;
  state[kTakenHostPages] -= lease[kLeaseOnHost];
  state[kWantedPages] -= lease[kLeaseWanted];
  for (int64_t i = 0; i < pages; ++i) {
    const int64_t place = place_of_page(i, on_device, state[kTakenPages], state[kTakenHostPages], shape);
    state[kPageWords + place] = lease[kLeaseWords + i] - static_cast<int32_t>(place);
  }
}

void rows_to_pages(const void* from, const PagedRows& pages, const PageShape& shape) {
  const auto* const source = static_cast<const unsigned char*>(from);
  each_page(pages, shape, [&](int64_t row, int64_t rows) {
    memcpy(pages.at(row, shape), source + row * pages.width, static_cast<size_t>(rows * pages.width));
  });
}

void rows_from_pages(const PagedRows& pages, void* to, const PageShape& shape) {
  auto* const target = static_cast<unsigned char*>(to);
  each_page(pages, shape, [&](int64_t row, int64_t rows) {
    memcpy(target + row * pages.width, pages.at(row, shape), static_cast<size_t>(rows * pages.width));
  });
}

}  // namespace metroplex::kernels
