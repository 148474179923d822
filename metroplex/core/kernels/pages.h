// A page pool for rows whose count is only on the device. Pages are allocated, freed and reused on the device. Two
// stacks on the device hold the page numbers of free pages: one for device memory, one for host memory. Host pages
// are used when the device pages are exhausted. No size is copied to the host, and a replay allocates pages as the
// first run did.
#pragma once

#include <algorithm>
#include <cstdint>

struct CUstream_st;

namespace metroplex::kernels {

struct PageShape {
  int64_t device_pages = 0, host_pages = 0;  // pages are numbered [0, device_pages), then host pages
  int64_t page_rows = 1;
  constexpr int64_t pages() const { return device_pages + host_pages; }
  constexpr int64_t pages_of(int64_t rows) const { return (rows + page_rows - 1) / page_rows; }
};

// The state of a pool: [kPageWords + pages] int32. All zeros: every page is free.
enum PageWord {
  kTakenPages,      // device pages in use
  kTakenHostPages,  // host pages in use
  kWantedPages,     // pages requested by all active leases, including failed ones
  kMostWanted,      // maximum of kWantedPages since all words were 0
  kShortLayer,      // first layer with too few pages: PageTake::layer, from 1; 0: none
  kPageWords        // the stacks follow. Page number = stack[i] + i, so zeros mean ascending pages
};

// A lease: [lease_words] int32, then its page numbers, those of host pages last.
enum LeaseWord {
  kLeaseRows,    // rows with pages: all requested rows, or 0
  kLeaseWanted,  // requested pages
  kLeaseOnHost,  // pages in host memory
  kLeaseWords
};
constexpr int64_t lease_words(int64_t rows, const PageShape& shape) { return kLeaseWords + shape.pages_of(rows); }

// Allocates pages for the sum of `counts`, at most `rows`. If too few are free, it allocates none and sets `flag`.
struct PageTake {
  const int64_t* counts = nullptr;  // [groups]
  int64_t groups = 0, rows = 0;
  int32_t layer = 0;
  int32_t *state = nullptr, *lease = nullptr, *flag = nullptr;
};
void take_pages(const PageTake& take, const PageShape& shape);
// Frees the pages. The lease is unchanged, so that a replay can free it again.
void give_pages(const int32_t* lease, int32_t* state, const PageShape& shape);

// The leased rows of a buffer [rows, width], `width` in bytes. A page has `page_bytes` bytes and contains page_rows
// of these rows from `offset` on. All numbers and pointers are multiples of 2.
struct PagedRows {
  const int32_t* lease = nullptr;
  unsigned char *device = nullptr, *host = nullptr;  // pages; host pages start at number device_pages
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
// Rows after the leased ones are not written.
void rows_from_pages(const PagedRows& pages, void* to, const PageShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers or pinned memory. They throw
// base::Error("cuda", ...) if the launch fails.
void take_pages_cuda(const PageTake& take, const PageShape& shape, CUstream_st* stream);
void give_pages_cuda(const int32_t* lease, int32_t* state, const PageShape& shape, CUstream_st* stream);
void rows_to_pages_cuda(const void* from, const PagedRows& pages, const PageShape& shape, CUstream_st* stream);
void rows_from_pages_cuda(const PagedRows& pages, void* to, const PageShape& shape, CUstream_st* stream);

// The work of one thread, for both versions.

// Rows to allocate pages for, and the available pages of each memory.
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
// Stack entry of page `i` of a lease, if `taken` device pages and `taken_on_host` host pages were in use before.
constexpr int64_t place_of_page(int64_t i, int64_t on_device, int64_t taken, int64_t taken_on_host,
                                const PageShape& shape) {
  return i < on_device ? taken + i : shape.device_pages + taken_on_host + i - on_device;
}

}  // namespace metroplex::kernels
