// Exchange of rows between the ranks of a layer's experts, directly or hierarchically by node. Backward is the same
// exchange with the transposed table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "moe/context.h"
#include "moe/row_codes.h"

namespace metroplex::moe {

// Number of rows from each member of a group (first index) to each member.
class RowTable {
 public:
  RowTable() = default;
  explicit RowTable(int members) : members_(members), rows_(static_cast<size_t>(members * members), 0) {}
  int members() const { return members_; }
  int64_t& at(int from, int to) { return rows_[index(from, to)]; }
  int64_t at(int from, int to) const { return rows_[index(from, to)]; }
  RowTable turned() const {
    RowTable out = *this;
    out.turned_ = !turned_;
    return out;
  }
  int64_t sent(int from) const;
  int64_t received(int to) const;

 private:
  size_t index(int from, int to) const {
    return static_cast<size_t>(turned_ ? to * members_ + from : from * members_ + to);
  }

  int members_ = 0;
  bool turned_ = false;  // rows_ is ordered by the second index
  std::vector<int64_t> rows_;
};

// An exchange with separate start and finish, so that other work can overlap. Without autograd.
struct RowExchange {
  // x, contiguous: rows for each member of context.experts, in member order.
  comm::Exchange (*start)(const at::Tensor& x, const RowTable& table, const ExpertContext& context);
  // Returns the rows from each member, in member order.
  at::Tensor (*finish)(comm::Exchange started, const RowTable& table, const ExpertContext& context);
};
extern const RowExchange kDirectExchange;
// First within the node, then between ranks with the same index on each node. Each inter-node message carries the
// rows of a whole node.
extern const RowExchange kExchangeByNode;

class RowsUnderWay {
 public:
  RowsUnderWay() = default;
  // `context` must have at least two ranks and outlive this object and the backward of its result. `formats` of the
  // sent rows, in forward and backward.
  RowsUnderWay(const at::Tensor& x, const RowTable& table, const ExpertContext& context, const RowExchange& how,
               const RowFormats& formats = {});
  // Returns the received rows; call it once. Differentiable in x: gradients take the reverse path.
  at::Tensor finish();

 private:
  at::Tensor x_;
  RowTable table_;
  const ExpertContext* context_ = nullptr;
  const RowExchange* how_ = nullptr;
  RowFormats formats_;
  comm::Exchange started_;
};

// Numbers of rows for and from the members of a group. The buffers have a fixed length, because the numbers are only
// on the device (GroupBackend::exchange_rows).
struct CountedExchange {
  at::Tensor sent, came;  // [members] int64: rows for each member, and from each
  int64_t room = 0;       // rows of the receive buffer
  int64_t capacity = 0;   // maximum rows of one pair

  CountedExchange turned(int64_t rows) const { return {came, sent, rows, capacity}; }
};

class CountedRowsUnderWay {
 public:
  CountedRowsUnderWay() = default;
  // x [N, ...]: rows for each member in turn. `overflow` as in exchange_rows; it is not expected, because `sent` has
  // only rows that fit everywhere. `group` must outlive this object and the backward of its result.
  CountedRowsUnderWay(const at::Tensor& x, const CountedExchange& how, const comm::Group& group,
                      const at::Tensor& overflow, const RowFormats& formats = {});
  // Returns `[room, ...]`; rows after the last received one are unspecified. Differentiable in x: gradients take the
  // reverse path.
  at::Tensor finish();

 private:
  at::Tensor x_, sent_, out_, overflow_;
  CountedExchange how_;
  RowFormats formats_;
  const comm::Group* group_ = nullptr;
  comm::Handle started_;
};

}  // namespace metroplex::moe
