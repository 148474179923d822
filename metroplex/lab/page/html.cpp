#include "page/html.h"

#include <map>

#include "base/error.h"
#include "base/join.h"
#include "page/page_data.h"
#include "page/page_files.h"
#include "page/pictures.h"

namespace metroplex::page {
namespace {

// Replaces {{name}} once, so that braces in values stay.
std::string fill(std::string_view pattern, const std::map<std::string, std::string, std::less<>>& values) {
  std::string out;
  for (size_t position = 0;;) {
    const size_t begin = pattern.find("{{", position);
    if (begin == std::string_view::npos) return out.append(pattern.substr(position));
    const size_t end = pattern.find("}}", begin);
    MPX_ASSERT(end != std::string_view::npos, "page.html has {{ without }}");
    const auto found = values.find(pattern.substr(begin + 2, end - begin - 2));
    MPX_ASSERT(found != values.end(), "page.html has an unknown name after {{");
    out.append(pattern.substr(position, begin - position)).append(found->second);
    position = end + 2;
  }
}

// The layouts of the runs; runs with the same picture share it.
std::string layout_html(const std::vector<const RunData*>& runs) {
  std::vector<Figure> figures;
  std::map<std::string, std::vector<std::string>> names;  // by SVG
  for (const RunData* run : runs) {
    for (Figure& figure : draw_layout(*run)) {
      std::vector<std::string>& users = names[figure.svg];
      if (users.empty()) figures.push_back(std::move(figure));
      users.push_back(run->name);
    }
  }
  std::string html;
  for (const Figure& figure : figures) {
    const std::vector<std::string>& users = names[figure.svg];
    const std::string of = users.size() < runs.size() ? " of " + base::join(users, ", ") : "";
    html += "<figure class=\"card picture\"><h3>" + escape_html(figure.title + of) +
            "</h3><div class=\"scroll\" role=\"img\" tabindex=\"0\" aria-label=\"" + escape_html(figure.title) +
            "\">" + figure.svg + "</div>" +
            (figure.caption.empty() ? "" : "<figcaption>" + escape_html(figure.caption) + "</figcaption>") +
            "</figure>\n";
  }
  return html;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

std::string script_json(const Json& json) {
  std::string out;
  for (const char letter : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (letter == '<') out += "\\u003c";  // ends "</script>" and "<!--"
    else out += letter;
  }
  return out;
}

std::string make_page(const std::vector<const RunData*>& runs, const PageOptions& options) {
  Json data = page_data(runs);
  data["reload"] = options.reload_seconds;
  std::vector<std::string> names;
  for (const RunData* run : runs) names.push_back(run->name);
  return fill(kPageHtml, {{"title", escape_html(base::join(names, ", "))},
                          {"css", kPageCss},
                          {"layout", layout_html(runs)},
                          {"data", script_json(data)},
                          {"chart", kChartJs},
                          {"cursor", kCursorJs},
                          {"sections", kSectionsJs},
                          {"tables", kTablesJs},
                          {"main", kMainJs}});
}

}  // namespace metroplex::page
