// How the search ranks pages: Sphinx's own weights. Headings that contain the query come first,
// decisions come below what users look for.
var Scorer = {
  score: ([docname, title, anchor, description, score, filename, kind]) =>
    score + (kind === "title" ? 20 : 0) - (docname.startsWith("decisions/") ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
