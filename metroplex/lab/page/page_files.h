// The text of files/*. cmake/EmbedFiles.cmake writes the definitions.
#pragma once

namespace metroplex::page {

extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kChartJs;
extern const char* const kCursorJs;
extern const char* const kSectionsJs;
extern const char* const kTablesJs;
extern const char* const kMainJs;

}  // namespace metroplex::page
