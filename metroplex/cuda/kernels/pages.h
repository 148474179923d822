// Pages of a pool for rows whose number only the device knows: taken where the counts are, given back, taken again.
// The numbers of free pages are two stacks on the device, of pages in its own memory and of those in the host's,
// which are taken when the others are gone. No size reaches the host, and a replay takes pages as the first run did.
#pragma once

#include <algorithm>
#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct PageShape {
  int64_t device_pages = 0, host_pages = 0;  // of the pool; numbers [0, device_pages), then those of the host
  int64_t page_rows = 1;
  constexpr int64_t pages() const { return device_pages + host_pages; }
  constexpr int64_t pages_of(int64_t rows) const { return (rows + page_rows - 1) / page_rows; }
};

// The state of a pool: [kPageWords + pages] int32. All zeros: every page is free.
enum PageWord {
  kTakenPages,      // of the device's
  kTakenHostPages,  // of the host's
  kWantedPages,     // by all leases that have not been given back, with pages or without
  kMostWanted,      // of that, since all was 0
  kShortLayer,      // who found too few first: PageTake::layer, from 1. 0: nobody
  kPageWords  // then the stacks. What lies at place i of a stack, plus i, is a number: zeros are ascending numbers
};

// What a take got: [lease_words] int32, then the numbers of its pages, those of the host last.
enum LeaseWord {
  kLeaseRows,    // that have pages: all that came, or none
  kLeaseWanted,  // pages
  kLeaseOnHost,  // of its pages
  kLeaseWords
};
constexpr int64_t lease_words(int64_t rows, const PageShape& shape) { return kLeaseWords + shape.pages_of(rows); }

// Takes pages for the sum of `counts`, at most for `rows`. Where too few are free none is taken, and `flag` is
// raised.
struct PageTake {
  const int64_t* counts = nullptr;  // [groups]
  int64_t groups = 0, rows = 0;
  int32_t layer = 0;
  int32_t *state = nullptr, *lease = nullptr, *flag = nullptr;
};
void take_pages(const PageTake& take, const PageShape& shape);
// Gives them back. What the lease says stays, so that a replay may give it back again.
void give_pages(const int32_t* lease, int32_t* state, const PageShape& shape);

// Rows of `width` bytes, the leased ones of [rows, width]. A page has `page_bytes`, and in it page_rows of these rows
// from `offset` on. All are multiples of 2, and every pointer is.
struct PagedRows {
  const int32_t* lease = nullptr;
  unsigned char *device = nullptr, *host = nullptr;  // pages; of the host: from number device_pages on
  int64_t rows = 0, width = 0, offset = 0, page_bytes = 0;
  constexpr int64_t leased() const { return lease[kLeaseRows]; }
  constexpr unsigned char* at(int64_t row, const PageShape& shape) const {
    const int64_t page = lease[kLeaseWords + row / shape.page_rows];
    unsigned char* const begin =
        page < shape.device_pages ? device + page * page_bytes : host + (page - shape.device_pages) * page_bytes;
    return begin + offset + row % shape.page_rows * width;
  }
};
void rows_to_pages(const void* from, const PagedRows& pages, const PageShape& shape);
// Rows behind the leased ones are not written.
void rows_from_pages(const PagedRows& pages, void* to, const PageShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device, or of pinned memory. base::Error("cuda",
// ...) when nothing was launched.
void take_pages_cuda(const PageTake& take, const PageShape& shape, CUstream_st* stream);
void give_pages_cuda(const int32_t* lease, int32_t* state, const PageShape& shape, CUstream_st* stream);
void rows_to_pages_cuda(const void* from, const PagedRows& pages, const PageShape& shape, CUstream_st* stream);
void rows_from_pages_cuda(const PagedRows& pages, void* to, const PageShape& shape, CUstream_st* stream);

// The parts of both: what one thread does for itself.

// Rows to take pages for, and how many pages of which memory there are for them.
struct PagesTaken {
  int32_t rows = 0, wanted = 0, on_device = 0, on_host = 0;
};
constexpr PagesTaken pages_to_take(const PageTake& take, const PageShape& shape) {
  int64_t rows = 0;
  for (int64_t i = 0; i < take.groups; ++i) rows += take.counts[i];
  rows = rows < take.rows ? rows : take.rows;
  const int64_t wanted = shape.pages_of(rows), free = shape.device_pages - take.state[kTakenPages],
                on_device = wanted < free ? wanted : free, on_host = wanted - on_device;
  PagesTaken taken;
  taken.wanted = static_cast<int32_t>(wanted);
  if (on_host > shape.host_pages - take.state[kTakenHostPages]) return taken;
  taken.rows = static_cast<int32_t>(rows);
  taken.on_device = static_cast<int32_t>(on_device), taken.on_host = static_cast<int32_t>(on_host);
  return taken;
}
// Where the stacks keep page `i` of a lease, with `taken` pages of the device and `on_host` of the host in front.
constexpr int64_t place_of_page(int64_t i, int64_t on_device, int64_t taken, int64_t taken_on_host,
                                const PageShape& shape) {
  return i < on_device ? taken + i : shape.device_pages + taken_on_host + i - on_device;
}

}  // namespace metroplex::cuda::kernels
