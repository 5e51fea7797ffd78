// Builds the page. The performance marks `report-read` and `report-shown` show how long it took.

const report = readReport();
performance.mark("report-read");
const store = makeStore(firstState(report));

showHead(report);
offerThemes();
showTree(report, store);
showFindings(report, store);
showFilters(report, store);
showTable(report, store);
keepInAddress(store);
requestAnimationFrame(() => setTimeout(() => performance.mark("report-shown")));
