#include "draw/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "draw/text.h"

namespace metroplex::draw {
namespace {

// With more ranks the table of transfers does not fit a terminal and is omitted.
constexpr size_t kMaxTableRanks = 16;

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

struct SequenceStats {
  plan::CutLoad load;
  std::vector<std::vector<plan::PositionRuns>> seen;
  KeyTraffic traffic;
  int64_t area = 0;

  explicit SequenceStats(const SequencePicture& picture)
      : load(cut_load(picture.documents, picture.cut)),
        seen(seen_keys(picture.documents, picture.cut)),
        traffic(key_traffic(picture.cut, seen)) {
    for (const int64_t of_rank : load.area) area += of_rank;
  }
  int64_t received(size_t reader) const {
    int64_t count = 0;
    for (size_t owner = 0; owner < seen.size(); ++owner)
      count += owner == reader ? 0 : num_positions(seen[reader][owner]);
    return count;
  }
};

std::vector<int64_t> document_begins(const SequencePicture& picture) {
  std::vector<int64_t> begins{0};
  for (const int64_t length : picture.documents[0]) begins.push_back(begins.back() + length);
  begins.pop_back();
  return begins;
}

std::string headline(const SequencePicture& picture) {
  const size_t documents = picture.documents[0].size();
  std::string text = base::concat(picture.title, ": ", picture.cut.length, " tokens");
  if (picture.documents.size() > 1) text += base::concat(" of ", picture.documents.size(), " samples");
  else if (documents > 1) text += base::concat(" in ", documents, " documents");
  return text + base::concat(", cp ", picture.cut.ranks.size());
}

std::string summary(const SequenceStats& stats) {
  return "most over mean: area " + format("%.3f", stats.load.area_ratio) + ", tokens " +
         format("%.3f", stats.load.token_ratio) + base::concat("; keys from other ranks: ", stats.traffic.seen) +
         (stats.traffic.all == 0 ? ""
                                 : format(", %.1f %%", share(stats.traffic.seen, stats.traffic.all)) +
                                       base::concat(" of the ", stats.traffic.all, " of a gather"));
}

// Returns `columns` marks over the sequence. Mark c covers positions [c length / columns, (c + 1) length / columns).
std::string bar(const plan::PositionRuns& runs, int64_t length, int64_t columns) {
  std::string text(static_cast<size_t>(columns), ' ');
  size_t run = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t begin = c * length / columns, end = (c + 1) * length / columns;
    int64_t held = 0;
    while (run < runs.size() && runs[run].end() <= begin) ++run;
    for (size_t i = run; i < runs.size() && runs[i].first < end; ++i)
      held += std::min(end, runs[i].end()) - std::max(begin, runs[i].first);
    if (held > 0) text[static_cast<size_t>(c)] = held == end - begin ? '#' : '+';
  }
  return text;
}

std::string table(const SequenceStats& stats) {
  const size_t ranks = stats.seen.size();
  size_t width = std::to_string(ranks - 1).size();
  for (const auto& of_reader : stats.seen) {
    for (const plan::PositionRuns& runs : of_reader)
      width = std::max(width, std::to_string(num_positions(runs)).size());
  }
  const std::string label = "to \\ from";
  std::string text = label;
  for (size_t owner = 0; owner < ranks; ++owner) text += "  " + pad_left(std::to_string(owner), width);
  for (size_t reader = 0; reader < ranks; ++reader) {
    text += "\n" + pad_left(std::to_string(reader), label.size());
    for (size_t owner = 0; owner < ranks; ++owner) {
      const int64_t count = reader == owner ? 0 : num_positions(stats.seen[reader][owner]);
      text += "  " + pad_left(count == 0 ? "." : std::to_string(count), width);
    }
  }
  return text + "\n";
}

constexpr double kSequenceWidth = 760, kSequenceRow = 26, kSequenceLeft = 64, kSequenceTop = 58;

std::string svg_box(double x, double y, double width, double height, const std::string& fill) {
  return "<rect x=\"" + format("%.6g", x) + "\" y=\"" + format("%.5g", y) + "\" width=\"" + format("%.5g", width) +
         "\" height=\"" + format("%.5g", height) + "\" fill=\"" + fill + "\"/>\n";
}

std::string svg_documents(const SequencePicture& picture, double scale) {
  std::string svg;
  int64_t at = 0;
  bool dark = false;
  for (const int64_t length : picture.documents[0]) {
    svg += svg_box(kSequenceLeft + static_cast<double>(at) * scale, kSequenceTop - 16,
                   static_cast<double>(length) * scale, 8, dark ? "#888" : "#ccc");
    at += length;
    dark = !dark;
  }
  return svg;
}

}  // namespace

KeyTraffic key_traffic(const plan::SequenceCut& cut, const std::vector<std::vector<plan::PositionRuns>>& seen) {
  KeyTraffic traffic;
  for (size_t reader = 0; reader < cut.ranks.size(); ++reader) {
    for (size_t owner = 0; owner < cut.ranks.size(); ++owner) {
      if (reader == owner) continue;
      traffic.seen += num_positions(seen[reader][owner]);
      traffic.all += num_positions(cut.ranks[owner]);
    }
  }
  return traffic;
}

std::string draw_text(const SequencePicture& picture, int columns) {
  const SequenceStats stats(picture);
  const plan::SequenceCut& cut = picture.cut;
  const int64_t wide = std::min<int64_t>(columns, cut.length);
  const size_t digits = std::to_string(cut.ranks.size() - 1).size();
  std::string documents(static_cast<size_t>(wide), ' ');
  for (const int64_t begin : document_begins(picture))
    documents[static_cast<size_t>(((begin + 1) * wide - 1) / cut.length)] = '|';
  std::string text = headline(picture) + "\n" + std::string(digits + 6, ' ') + documents + "\n";
  for (size_t rank = 0; rank < cut.ranks.size(); ++rank) {
    text += "rank " + pad_left(std::to_string(rank), digits) + " " + bar(cut.ranks[rank], cut.length, wide) +
            base::concat(" ", stats.load.tokens[rank], " tokens, area ") +
            format("%.2f %%, gets ", share(stats.load.area[rank], stats.area)) +
            base::concat(stats.received(rank), " keys\n");
  }
  text += summary(stats) + "\n";
  if (cut.ranks.size() > 1 && cut.ranks.size() <= kMaxTableRanks && stats.traffic.seen > 0) text += table(stats);
  return text;
}

std::string draw_svg(const SequencePicture& picture) {
  const SequenceStats stats(picture);
  const plan::SequenceCut& cut = picture.cut;
  const double scale = kSequenceWidth / static_cast<double>(cut.length);
  const double height = kSequenceTop + kSequenceRow * static_cast<double>(cut.ranks.size()) + 26;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1040 " + format("%.5g", height) +
                    "\" font-family=\"sans-serif\" font-size=\"11\">\n" + svg_box(0, 0, 1040, height, "white");
  svg += svg_text(kSequenceLeft, 18, " font-size=\"13\" font-weight=\"bold\"", headline(picture));
  svg += svg_documents(picture, scale);
  for (size_t rank = 0; rank < cut.ranks.size(); ++rank) {
    const double y = kSequenceTop + kSequenceRow * static_cast<double>(rank);
    svg += svg_text(kSequenceLeft - 8, y + 15, " text-anchor=\"end\"", "rank " + std::to_string(rank));
    svg += svg_box(kSequenceLeft, y, kSequenceWidth, 22, "#f2f2f2");
    for (size_t owner = 0; owner < cut.ranks.size(); ++owner) {
      for (const plan::PositionRun& run : stats.seen[rank][owner]) {
        svg += svg_box(kSequenceLeft + static_cast<double>(run.first) * scale, y + 6,
                       static_cast<double>(run.count) * scale, 10, owner == rank ? "#4d8fd1" : "#e3c27a");
      }
    }
    for (const plan::PositionRun& run : cut.ranks[rank]) {
      svg += svg_box(kSequenceLeft + static_cast<double>(run.first) * scale, y,
                     static_cast<double>(run.count) * scale, 22, "#4d8fd1");
    }
    svg += svg_text(kSequenceLeft + kSequenceWidth + 8, y + 15, "",
                    base::concat(stats.load.tokens[rank], " tokens, area ") +
                        format("%.2f %%", share(stats.load.area[rank], stats.area)));
  }
  return svg +
         svg_text(kSequenceLeft, height - 8, " fill=\"#555\"",
                  "grey: documents; blue: own tokens; yellow: keys from other ranks; " + summary(stats)) +
         "</svg>\n";
}

}  // namespace metroplex::draw
