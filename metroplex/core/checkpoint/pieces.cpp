#include "checkpoint/pieces.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "files/json_text.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {
namespace {

Dims row_strides(const Dims& size) {
  Dims strides(size.size(), 1);
  for (size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * size[d];
  return strides;
}

// Appends the boxes of elements [begin, end) within the part of `piece` that starts with the coordinates `prefix`.
void split(const Piece& piece, Dims prefix, int64_t begin, int64_t end, std::vector<Piece>& boxes) {
  if (begin >= end) return;
  const size_t dim = prefix.size(), dims = piece.size.size();
  int64_t inner = 1;
  for (size_t d = dim + 1; d < dims; ++d) inner *= piece.size[d];
  const auto descend = [&](int64_t at, int64_t from, int64_t to) {
    Dims longer = prefix;
    longer.push_back(at);
    split(piece, longer, from, to, boxes);
  };
  int64_t first = dims == dim ? 0 : begin / inner;
  const int64_t last = dims == dim ? 0 : end / inner;
  if (dim < dims && first == last) return descend(first, begin - first * inner, end - first * inner);
  if (dim < dims && begin % inner != 0) {
    descend(first, begin % inner, inner);
    ++first;
  }
  if (dims == dim || first < last) {
    Piece box;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t at = d < dim ? prefix[d] : (d == dim ? first : 0);
      box.offset.push_back(piece.offset[d] + at);
      box.size.push_back(d < dim ? 1 : (d == dim ? last - first : piece.size[d]));
    }
    boxes.push_back(box_piece(box.offset, box.size));
  }
  if (dim < dims && end % inner != 0) descend(last, 0, end % inner);
}

bool intersect(const Piece& a, const Piece& b, Piece& common) {
  common.offset.resize(a.size.size());
  common.size.resize(a.size.size());
  for (size_t d = 0; d < a.size.size(); ++d) {
    common.offset[d] = std::max(a.offset[d], b.offset[d]);
    common.size[d] = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]) - common.offset[d];
    if (common.size[d] <= 0) return false;
  }
  return true;
}

int64_t position(const Piece& piece, const Dims& strides, const Dims& at) {
  int64_t index = -piece.begin;
  for (size_t d = 0; d < at.size(); ++d) index += (at[d] - piece.offset[d]) * strides[d];
  return index;
}

struct Side {
  const Piece& piece;
  Dims strides;
};

// Copies a box contained in both sides, in ranges that are contiguous on both.
void copy_box(const Piece& box, const Side& source, const char* from, const Side& target, char* to,
              int64_t element_bytes) {
  int64_t run = 1;
  size_t outer = box.size.size();
  while (outer > 0) {
    --outer;
    run *= box.size[outer];
    if (box.size[outer] != source.piece.size[outer] || box.size[outer] != target.piece.size[outer]) break;
  }
  Dims at = box.offset;
  for (;;) {
    std::memcpy(to + position(target.piece, target.strides, at) * element_bytes,
                from + position(source.piece, source.strides, at) * element_bytes,
                static_cast<size_t>(run * element_bytes));
    size_t d = outer;
    while (d > 0) {
      --d;
      if (++at[d] < box.offset[d] + box.size[d]) break;
      at[d] = box.offset[d];
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace

Piece box_piece(const Dims& offset, const Dims& size) { return {offset, size, 0, files::element_count(size)}; }

Piece whole_piece(const Dims& shape) { return box_piece(Dims(shape.size(), 0), shape); }

std::string describe_shape(const Dims& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + "]";
}

std::string describe(const Piece& piece) {
  std::string text = "[";
  for (size_t d = 0; d < piece.size.size(); ++d) {
    text += base::concat(d == 0 ? "" : ", ", piece.offset[d], ":", piece.offset[d] + piece.size[d]);
  }
  text += "]";
  if (piece.count() != files::element_count(piece.size))
    text += base::concat(" elements ", piece.begin, ":", piece.end);
  return text;
}

std::vector<Piece> split_into_boxes(const Piece& piece) {
  std::vector<Piece> boxes;
  split(piece, {}, piece.begin, piece.end, boxes);
  return boxes;
}

bool boxes_meet(const Piece& a, const Piece& b) {
  Piece common;
  return intersect(a, b, common);
}

int64_t copy_overlap(const Piece& source, const void* source_data, const Piece& target, void* target_data,
                     int64_t element_bytes) {
  const Side from{source, row_strides(source.size)}, to{target, row_strides(target.size)};
  const std::vector<Piece> target_boxes = split_into_boxes(target);
  int64_t copied = 0;
  Piece common;
  for (const Piece& box : split_into_boxes(source)) {
    for (const Piece& target_box : target_boxes) {
      if (!intersect(box, target_box, common)) continue;
      copy_box(common, from, static_cast<const char*>(source_data), to, static_cast<char*>(target_data),
               element_bytes);
      copied += files::element_count(common.size);
    }
  }
  return copied;
}

std::string cover_problem(const Dims& shape, const std::vector<Piece>& pieces) {
  struct Box {
    Piece piece;
    size_t owner;
  };
  std::vector<Box> boxes;
  int64_t covered = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    covered += pieces[i].count();
    for (Piece& box : split_into_boxes(pieces[i])) boxes.push_back({std::move(box), i});
  }
  // Sweeps along the dimension with the most distinct starts, so few boxes are open at once.
  size_t axis = 0, most = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::set<int64_t> starts;
    for (const Box& box : boxes) starts.insert(box.piece.offset[d]);
    if (starts.size() > most) axis = d, most = starts.size();
  }
  if (!shape.empty()) {
    std::sort(boxes.begin(), boxes.end(),
              [&](const Box& a, const Box& b) { return a.piece.offset[axis] < b.piece.offset[axis]; });
  }
  std::vector<const Box*> open;
  Piece common;
  for (const Box& box : boxes) {
    if (!shape.empty()) {
      std::erase_if(
          open, [&](const Box* o) { return o->piece.offset[axis] + o->piece.size[axis] <= box.piece.offset[axis]; });
    }
    for (const Box* other : open) {
      if (!intersect(box.piece, other->piece, common)) continue;
      return base::concat("its pieces ", describe(pieces[other->owner]), " and ", describe(pieces[box.owner]),
                          " overlap");
    }
    open.push_back(&box);
  }
  const int64_t all = files::element_count(shape);
  return covered == all ? "" : base::concat(all - covered, " of its ", all, " elements are in no piece");
}

std::string label(const std::string& name, const std::string& kind) {
  return base::concat("tensor '", files::printable(name), "' (", files::printable(kind), ")");
}

std::vector<Piece> manifest_pieces(const files::ManifestTensor& tensor) {
  std::vector<Piece> pieces;
  for (const files::ManifestPiece& piece : tensor.pieces)
    pieces.push_back({piece.offset, piece.size, piece.begin, piece.end});
  return pieces;
}

}  // namespace metroplex::checkpoint
